# shellcheck shell=bash disable=SC2016 # scripts for another shell
# More programs of every day, with larger files than those of same.sh. Sourced by a script that has sourced lib.sh and, for
# `needs`, bigger.sh, and scripts/lib-python.sh.
#
# $CORPUS_SCALE: how large some of them are; 1 every day.

corpus=$PWD/tests/programs
scale=${CORPUS_SCALE:-1}

# python_same NAME LEAST MODULE[,MODULE...] COMMAND: by the system's Python; skipped where it lacks the modules.
python_same() {
    local modules
    wanted "$1" || return 0
    IFS=, read -ra modules <<<"$3"
    if python_has "${modules[@]}"; then
        same "$1" "PYTHONPATH=$python_modules OMP_NUM_THREADS=1 /usr/bin/python3 -B $corpus/$4" "$2"
    else
        skipped "$1" "${3//,/ and } are missing (scripts/install-test-deps.sh installs them)"
    fi
}
python_same numpy 5000000 numpy streams.py
python_same torch 20000000 torch,numpy 'tensors.py torch'
python_same safetensors 3000000 safetensors,numpy 'tensors.py safetensors'
python_same pyarrow 10000000 pyarrow,numpy tables.py
same pools "python3 -B $corpus/pools.py" 5000000

same cpp_streams "
g++ -O1 -std=c++17 -pthread -o streams $corpus/streams.cpp && ./streams
rm streams" 8000000

# It sorts in parts, which it merges; then in place, by another key, by two threads.
same sort_large "
awk 'BEGIN { srand(3); for (i = 0; i < $((600000 * scale)); i++) printf \"%.9f %d of many lines, each of which is as long\\n\", rand(), i % 977 }' >in
mkdir parts
sort -T parts -S 8M --parallel=2 in -o by_first; sort -T parts -S 8M -c by_first && echo sorted
sort -T parts -S 12M -k 2,2n -k 1,1 -o in in; tail -n 2 in
sort -T parts -S 8M -m <(head -n 1000 by_first) <(tail -n 1000 by_first) | cksum
sort -T parts -S 8M --compress-program=gzip -r by_first | cksum
rm by_first; ls parts" $((60000000 * scale))

# Objects that many commits have changed; what git packs is not the same twice, what is in it must be.
same git_large "
export HOME=\$PWD GIT_CONFIG_NOSYSTEM=1 GIT_COMMITTER_DATE='1750000000 +0000' EMAIL=name@example.org GIT_COMMITTER_NAME=Name
git config --global init.defaultBranch main; git config --global gc.auto 0; git config --global pack.threads 2
git config --global safe.directory '*'
$corpus/history.awk -v commits=$((500 * scale)) </dev/null >stream
git init -q --bare origin.git; git --git-dir=origin.git fast-import --quiet --date-format=raw <stream
rm stream
git --git-dir=origin.git log --format=%H | cksum
git clone -q --no-local origin.git clone; git clone -q --bare --no-hardlinks origin.git mirror.git
git --git-dir=mirror.git gc -q --prune=now; git --git-dir=mirror.git repack -q -a -d -f --depth=10 --window=5
git --git-dir=mirror.git fsck --full --strict; echo fsck \$?
git --git-dir=mirror.git verify-pack -v mirror.git/objects/pack/*.idx | tail -n 0; echo packs \$?
cd clone; git log --format='%H %T' | cksum; git status --short; git checkout -q HEAD~20; git status --short
git grep -c 'line 3' | cksum; git worktree add -q ../tree HEAD~50; git -C ../tree log -1 --format=%T
git archive --format=tar HEAD | cksum; git bundle create -q ../all.bundle --all; git bundle verify -q ../all.bundle; echo \$?
git rebase -q --onto HEAD~3 HEAD~2 2>&1; git log -2 --format=%T; echo stashed >>dir1/file1.txt; git stash -q; git stash pop -q; git status --short; git diff --stat HEAD~100 | tail -n 1
cd ..; rm -rf clone/.git tree/.git origin.git mirror.git all.bundle" $((1000000 * scale))

# What has changed is built again and nothing else is: the times of files are what make goes by.
same parallel_make '
mkdir src; n=24
for i in $(seq $n); do
    printf "#include \"parts.h\"\nint part_%d(int x) { static int room[9000] = {%d}; return x * %d + room[x & 1]; }\n" $i $i $i >src/part_$i.c
    echo "int part_$i(int);" >>src/parts.h
done
{ echo "#include <stdio.h>"; echo "#include \"parts.h\""; echo "int main(void) { int s = 1;"
  for i in $(seq $n); do echo "s = part_$i(s) % 99991;"; done; echo "printf(\"%d\\n\", s); return 0; }"; } >src/main.c
cat >Makefile <<"END"
sources := $(wildcard src/*.c)
objects := $(sources:src/%.c=obj/%.o)
program: obj/libparts.a obj/main.o ; $(CC) -o $@ obj/main.o -Lobj -lparts
obj/libparts.a: $(filter-out obj/main.o,$(objects)) ; rm -f $@; ar rcsD $@ $(sort $^)
obj/%.o: src/%.c src/parts.h | obj ; $(CC) -MMD -O1 -c -o $@ $<
obj: ; mkdir obj
-include $(wildcard obj/*.d)
END
built() { make --no-print-directory -O "$@" >said 2>&1 || { echo "make fails"; tail -n 3 said; }; sort said; rm said; }
built -j4; ./program
built -j4
sleep 0.02; echo "int more;" >>src/part_7.c; built -j4; ./program
sleep 0.02; touch src/parts.h; built -j4 -l 20; ./program; built -q; echo $?
sleep 0.02; sed -i s/99991/99989/ src/main.c; built -j3; ./program; find . -newer obj/libparts.a -name "*.o"' 1000000

if ! needs sqlite_tools sqldiff; then
    :
else
    same sqlite_tools '
awk "BEGIN { for (i = 0; i < 30000; i++) print i \",\\\"text \" i \"\\\",\" i * 7 % 1000 }" >rows.csv
sqlite3 one.db "create table t (n integer primary key, text text, v int); create index i on t (v);" ".mode csv" ".import rows.csv t"
sqlite3 one.db .dump >dump.sql; sqlite3 two.db <dump.sql; sqldiff one.db two.db; echo diff $?
sqlite3 two.db "update t set v = v + 1 where n % 1000 = 3; delete from t where n = 77; insert into t values (90000, null, 1);"
sqldiff one.db two.db | cksum; sqldiff --summary one.db two.db
sqldiff one.db two.db | sqlite3 one.db; sqldiff one.db two.db; echo same $?
sqlite3 one.db ".backup copy.db"; sqlite3 restored.db ".restore copy.db" "pragma integrity_check; select count(*), sum(v) from t;"
sqlite3 one.db ".clone cloned.db" >/dev/null; sqldiff one.db cloned.db
sqlite3 one.db "vacuum into \"small.db\"; analyze;" ".stats off" "select count(*) from sqlite_stat1;"
sqlite3_analyzer one.db | grep -v -i "^\\*\\* *disk-space" | cksum; sqlite3 small.db ".sha3sum" ".indexes"
sqlite3 files.sqlar -Ac rows.csv dump.sql; mkdir out; (cd out; sqlite3 ../files.sqlar -Ax); sqlite3 files.sqlar -At; cmp rows.csv out/rows.csv; cmp dump.sql out/dump.sql; echo $?
sqlite3 one.db "pragma mmap_size = 100000000; pragma cache_size = 20; select sum(v), count(distinct text) from t; update t set v = v + 2; select sum(v) from t;" ".output out.txt" "select * from t;"
sqlite3 one.db "begin; delete from t; savepoint a; insert into t values (1, 2, 3); rollback to a; rollback; select count(*) from t;"
sqlite3 one.db "pragma cache_spill = 1; pragma cache_size = 10; begin; update t set text = text || v; rollback; pragma integrity_check; select sum(length(text)) from t;"
sqlite3 other.db "pragma page_size = 65536; pragma auto_vacuum = incremental; create table b (x blob); with recursive c(x) as (select 1 union all select x + 1 from c where x < 300)
    insert into b select zeroblob(x * 300) from c; delete from b where rowid % 2; pragma incremental_vacuum(10); pragma integrity_check;"
rm -f files.sqlar' 8000000
fi

# Programs that watch a file grow while others of the session write it.
same tee_and_tail '
grow() { for i in $(seq 400); do echo "line $i of $1"; [ $((i % 100)) -ne 0 ] || sleep 0.02; done; }
grow a | tee one two >three; cmp one two; cmp one three; echo more | tee -a one two; seq 100000 | tee four | tail -n 3
seq 50000 | tee >(sort -n >five) >(cksum >six) >seven; for i in $(seq 300); do [ -s six ] && [ "$(wc -l <five)" = 50000 ] && break; sleep 0.1; done
: >log; grow b >>log & grower=$!
tail -n +1 -f --pid=$grower log >followed; wait $grower
for i in $(seq 3000); do echo "step $i"; done >>log
: >rotated; tail -n +1 -F rotated >everything 2>/dev/null & tail=$!
for part in 1 2 3; do
    for i in $(seq 200); do echo "part $part line $i"; done >>rotated
    for wait in $(seq 600); do [ "$(grep -c . everything)" -ge $((part * 200)) ] && break; sleep 0.05; done
    mv rotated rotated.$part; : >rotated
done
kill $tail; wait $tail; sort everything | uniq -c | wc -l; cmp <(sort -u everything) <(sort -u rotated.*); echo $?
cmp followed <(head -n 400 log); echo $?; wc -l <log' 500000

same pipelines '
seq 200000 | awk "{ print \$1 * 7 % 10007, \$1 }" >numbers
sort -n numbers | tee sorted | cut -d " " -f 1 | uniq -c | sort -k 1,1nr -k 2,2n | head -n 5
join <(sort -k 1,1 numbers | head -n 20000) <(sort -k 1,1 -u numbers) | cksum; paste numbers sorted | tail -n 1; tac numbers | cksum
split -n l/7 -d numbers piece.; cat piece.* | cmp - numbers; echo $?; csplit -s -n 3 sorted 1000 50000 100000; wc -l xx*
grep -n -c "^1.* 9" numbers; sed -n "s/^\(.*\) \(.*\)$/\2 \1/w swapped" numbers; head -c 50 swapped; tr 0-9 a-j <numbers >letters
find . -type f -size +1M | sort | xargs -P 3 -n 1 sh -c "cksum <\$0 >\$0.sum"; cat *.sum
cat numbers numbers >>letters; (flock 9; echo locked >>letters) 9>lock; comm -3 numbers swapped 2>/dev/null | wc -l
dd if=numbers bs=1M 2>/dev/null | gzip -1 -n | tee packed.gz | gunzip | cmp - numbers; echo $?; base64 numbers | base64 -d | cmp - numbers
od -A d -t x1 numbers | tail -n 1; expand -t 4 numbers | fold -w 10 | nl | tail -n 1; shuf --random-source=numbers -n 5 numbers
patch --version >/dev/null 2>&1 && { cp numbers patched; sed 5,9d numbers | diff -u numbers - | patch -s patched; wc -l <patched; }; ls' 9000000
