# shellcheck shell=bash disable=SC2016 # scripts for another shell
# Ordinary programs, plainly and under Forebay. Sourced by a script that has sourced lib.sh.

same redirections '
(echo first; echo second; seq 30000) > out
{ echo more; (echo from a child; seq 5); } >> out
for i in $(seq 40); do echo "line $i" >> log; done
exec 5<> both; seq 20000 >&5; seq 3 >&5; exec 5>&-
seq 50000 | tee copy | tail -n 1
head -c 100 < out > head; cat out copy > all
while read -r line; do last=$line; done < out; echo "$last"
: > out; ls -l out | cut -c 1-10; wc -c < all
seq 100000 > numbers; truncate -s 1000 numbers; echo end >> numbers; tail -c 20 numbers
ls no-such-file; exit 3'

same dd '
seq 300000 > in
dd if=in of=odd bs=4093 2> /dev/null
dd if=in of=odd bs=511 count=99 seek=77 conv=notrunc 2> /dev/null
dd if=in of=sparse bs=1k seek=3000 count=17 2> /dev/null
dd if=in of=synced bs=64k conv=fsync 2> /dev/null
dd if=in of=big bs=3M iflag=fullblock 2> /dev/null
dd if=odd bs=777 skip=3 count=100 2> /dev/null | cksum
dd if=in of=append bs=1000 count=50 oflag=append conv=notrunc 2> /dev/null
dd if=in of=append bs=1000 count=50 oflag=append conv=notrunc 2> /dev/null
cksum *; stat -c "%n %s" *'

same copies '
seq 200000 > a
cp a b; cp -a b c; cat a b > d; cp --sparse=always d e; cmp d e; mv c f; ln f g; cp -l a h; ln -s a link
install -m 640 a i; rsync --version > /dev/null 2>&1 && rsync a j || cp a j
head -c 700000 d > k; tail -c 600001 d > l; split -b 100001 d part.; cat part.* | cmp - d; echo $?
truncate -s 12345 k; truncate -s 2M l; fallocate -l 1M m; rm b; du -b --apparent-size l | cut -f 1'

same sort_and_gzip '
seq 1 3 400000 | shuf --random-source=<(yes) > in
sort in > text; sort -n in > numbers; sort -n -r -o in in; sort --buffer-size=1M -u text | cksum
gzip -n -k text; gunzip -c text.gz | cmp - text; gzip -t text.gz; echo $?
tar czf both.tgz text numbers; tar tzf both.tgz; xz -1 -k numbers && xz -t numbers.xz; echo $?
rm both.tgz; uniq < text | wc; sed -i s/1/one/ numbers; awk "{ s += length } END { print s }" numbers; comm -12 text numbers | wc -l'

same tar "
mkdir tree; cp -r $PWD/crates tree/; cp -r $PWD/docs tree/
tar cf one.tar --sort=name --mtime=@0 --owner=0 --group=0 tree; tar tf one.tar | cksum
mkdir out; tar xf one.tar -C out; diff -r tree out/tree; echo \$?
tar czf two.tgz --sort=name --mtime=@0 -C out tree; mkdir again; tar xzf two.tgz -C again; diff -r tree again/tree; echo \$?
rm two.tgz; tar rf one.tar --mtime=@0 --owner=0 --group=0 out/tree/docs/cli.md; tar tf one.tar | tail -n 1; tar df one.tar -C . out/tree/docs/cli.md 2>&1 | head -n 1"

same c_project '
for i in $(seq 12); do
    echo "int f$i(int x) { static char room[40000] = {1}; return x + $i + room[0]; }" > f$i.c
    echo "int f$i(int);" >> all.h
done
{ echo "#include <stdio.h>"; echo "#include \"all.h\""; echo "int main(void) { int s = 0;"
  for i in $(seq 12); do echo "s += f$i($i);"; done; echo "printf(\"%d\\n\", s); return 0; }"; } > main.c
printf "prog: main.o \$(patsubst %%,f%%.o,1 2 3)\n" > /dev/null
for i in $(seq 12); do gcc -c -O1 f$i.c -o f$i.o & done; gcc -c main.c; wait
gcc -o prog main.o f*.o && ./prog
ar rcs libf.a f*.o; gcc -o other main.o -L. -lf && ./other
# Written and executed at once, again and again: nobody may hold it open for writing.
for i in $(seq 8); do cp prog copy$i; chmod +x copy$i; ./copy$i; done
cat prog > by_cat; chmod +x by_cat; ./by_cat; strip -o stripped prog; ./stripped
rm -f *.o libf.a copy* by_cat stripped other prog'

# The loader maps files by calls of its own. The library is built again under its name, and written over in its place.
same c_library '
cat > answer.c <<EOF
static const volatile int room[20000] = {[0 ... 19999] = ANSWER};
static int writable[5000] = {[0 ... 4999] = ANSWER};
int answer(int at) { return room[at] * 1000 + writable[at / 4]++; }
EOF
cat > linked.c <<EOF
#include <stdio.h>
int answer(int at);
int main(void) { return printf("linked %d %d\n", answer(3), answer(19999)) < 0; }
EOF
cat > loads.c <<EOF
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static void *load(const char *name, int (**answer)(int)) {
    void *library = dlopen(name, RTLD_NOW);
    if (!library || !(*answer = (int (*)(int))dlsym(library, "answer"))) puts(dlerror()), exit(1);
    return library;
}
static void shell(const char *command) { fflush(stdout); printf("%d\n", system(command)); }
int main(void) {
    int (*first)(int), (*second)(int);
    void *old = load("./libanswer.so", &first), *new;
    printf("loaded %d\n", first(3));
    shell("gcc -shared -fPIC -DANSWER=2 -o libanswer.so answer.c && ./linked");
    /* By another name: the loader has this one. */
    new = load("././libanswer.so", &second);
    printf("old %d\n", first(11000));
    printf("new %d\n", second(11000));
    dlclose(old), dlclose(new);
    shell("gcc -shared -fPIC -DANSWER=3 -o third.so answer.c && cat third.so > libanswer.so && ./linked");
    new = load("./libanswer.so", &second);
    printf("written over %d %d\n", second(3), second(19999));
    return dlclose(new);
}
EOF
gcc -shared -fPIC -DANSWER=1 -o libanswer.so answer.c; gcc -o linked linked.c -L. -lanswer -Wl,-rpath,\$ORIGIN; gcc -o loads loads.c -ldl
./linked; ./loads; ./linked; cmp third.so libanswer.so
for i in $(seq 4 7); do gcc -shared -fPIC -DANSWER=$i -o libanswer.so answer.c; ./linked; done
for i in $(seq 8 11); do gcc -shared -fPIC -DANSWER=$i -o next.so answer.c; cat next.so > libanswer.so; ./linked; done
rm linked loads' 2000000

same git '
export HOME=$PWD GIT_AUTHOR_DATE="2024-01-01T00:00:00Z" GIT_COMMITTER_DATE="2024-01-01T00:00:00Z"
git config --global user.email a@b; git config --global user.name n; git config --global init.defaultBranch main
git config --global gc.auto 0; git config --global core.fsync all
git init -q repo; cd repo
for i in $(seq 60); do seq $i 400 $((i * 3000)) > f$i; done; seq 300000 > large
git add .; git commit -q -m one; for i in $(seq 10 30); do echo "change $i" >> f$i; done; echo more >> large
git commit -q -a -m two; git tag v1; git checkout -q -b side HEAD~1; echo side > s; git add s; git commit -q -m side
git merge -q -m merge main; git log --format="%H %s"; git gc -q --aggressive; git fsck --full; echo fsck $?
git clone -q . ../clone; cd ../clone; git log --format=%T; git fsck --full; echo fsck $?; git status --short
cd ..; rm -rf repo/.git/index repo/.git/logs clone/.git/index clone/.git/logs repo/.git/objects clone/.git/objects repo/.git/gc.log
find . -name "*.lock"; rm -rf repo/.git clone/.git'

for mode in DELETE WAL; do
    same "sqlite_$mode" "
worker() {
    for i in \$(seq 25); do
        sqlite3 -cmd '.timeout 20000' data.db \"begin immediate; insert into t select \$1, \$i, hex(zeroblob(\$i * 40));
            update t set v = 'changed' || v where w = \$1 and n % 3 = 0; commit;\" || echo failed
    done
}
sqlite3 data.db 'pragma page_size = 4096; pragma journal_mode = $mode; create table t (w int, n int, v text);
    create index i on t (w, n);'
worker 1 & worker 2 & wait
sqlite3 data.db 'with recursive c(x) as (select 1 union all select x + 1 from c where x < 20000)
    insert into t select 3, x, \"text \" || x from c; delete from t where w = 3 and n % 7 = 0;'
sqlite3 data.db 'pragma integrity_check; select w, count(*), sum(n), sum(length(v)) from t group by w order by w;'
sqlite3 data.db vacuum; sqlite3 data.db 'pragma integrity_check;'; sqlite3 data.db .dump | sort | cksum
sqlite3 data.db 'pragma wal_checkpoint(truncate);' > /dev/null; ls; rm -f data.db-wal data.db-shm
# Two writers take turns as they like: the pages may lie otherwise.
sqlite3 data.db 'select * from t order by w, n, v' > rows; rm data.db"
done

same python "
cat > p.py <<'EOF'
import hashlib, os, random, mmap, tempfile
random.seed(7)
blob = random.randbytes(3_000_001)
with open('ckpt', 'wb') as f: f.write(blob)
assert open('ckpt', 'rb').read() == blob
model = bytearray(blob)
with open('ckpt', 'r+b', buffering=0) as f:
    for _ in range(400):
        at, n = random.randrange(len(model) + 5000), random.randrange(1, 70000)
        data = random.randbytes(n)
        f.seek(at); f.write(data)
        if at > len(model): model.extend(bytes(at - len(model)))
        model[at:at + n] = data
        if random.random() < .3:
            at, n = random.randrange(len(model)), random.randrange(1, 90000)
            f.seek(at); assert f.read(n) == bytes(model[at:at + n]), (at, n)
        if random.random() < .05:
            n = random.randrange(len(model) + 1); f.truncate(n); del model[n:]
    assert f.seek(0, 2) == len(model) == os.fstat(f.fileno()).st_size == os.stat('ckpt').st_size
    os.fsync(f.fileno())
assert open('ckpt', 'rb').read() == bytes(model)
fd = os.open('pv', os.O_RDWR | os.O_CREAT, 0o600)
os.pwritev(fd, [b'a' * 100000, b'b' * 7, b'c' * 50001], 13)
print(os.pread(fd, 20, 100005), os.lseek(fd, 0, os.SEEK_CUR))
two = os.dup(fd); os.write(two, b'zz'); print(os.lseek(fd, 0, os.SEEK_CUR)); os.close(two)
pid = os.fork()
if pid == 0:
    os.write(fd, b'child' * 9000); os._exit(0)
os.waitpid(pid, 0); print(os.lseek(fd, 0, os.SEEK_CUR)); os.close(fd)
with open('lines', 'w') as f:
    for i in range(60000): print('line', i, file=f)
with open('lines', 'a+') as f:
    print('end', file=f); f.seek(0); print(sum(1 for _ in f))
with open('lines', 'r+b') as f:
    m = mmap.mmap(f.fileno(), 0); m[0:4] = b'LINE'; print(hashlib.sha256(m).hexdigest()); m.close()
os.rename('lines', 'renamed'); os.link('renamed', 'hard'); os.unlink('renamed')
with tempfile.TemporaryFile(dir='.') as t:
    t.write(blob); t.seek(0); print(hashlib.sha256(t.read()).hexdigest())
f = open('gone', 'w+b'); os.unlink('gone'); f.write(blob); f.seek(0); assert f.read() == blob; f.close()
os.sendfile  # copies by the kernel
a, b = os.open('ckpt', os.O_RDONLY), os.open('sent', os.O_WRONLY | os.O_CREAT)
at = 0
while (n := os.sendfile(b, a, at, 1 << 20)): at += n
print(at == len(model))
print(os.copy_file_range(a, b, 1000, 5))
EOF
python3 p.py"

# File systems give the number of a removed file to the next one: what is known of one is nothing of the other's.
same numbers_given_again "
cat > p.py <<'EOF'
import os
bad, seen, again = 0, set(), 0
for i in range(200):
    fd = os.open('f', os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    again += os.fstat(fd).st_ino in seen
    seen.add(os.fstat(fd).st_ino)
    os.pwrite(fd, b'x' * 20000, 1000000 + i)
    bad += os.fstat(fd).st_size != 1020000 + i or os.stat('f').st_size != 1020000 + i
    os.close(fd)
    os.unlink('f')
print(bad, again > 0)
EOF
python3 p.py"
