#!/bin/sh
# What runs in a container of tests/run.d/70-mount.sh: the first process of namespaces of its own, with a root in which there is a static busybox, /proc
# and the files that it works on. It says what it has found, the same wherever these lie.
set -e
export PATH=/bin:/usr/bin
cd "$1"
echo "process $$, user $(id -u)"
mkdir -p a/b c
i=0
while [ $i -lt 100 ]; do
    seq $i $((i + 500)) >a/new
    mv a/new a/$((i % 60))
    i=$((i + 1))
done
ls a | wc -l
for i in 1 2 3 4; do (for j in 1 2 3 4 5 6 7 8 9; do echo "$i $j" >>appended; done) & done
wait
sort appended | md5sum
sort appended >sorted
rm appended # Who came first differs.
cp -a a c/copy
diff -r a c/copy && echo 'copies are the same'
ln a/7 linked
ln -s a/8 points
mv c d
cmp a/7 d/copy/7 && cmp points d/copy/8 && echo 'names lead there'
tar cf - a | tar xf - -C d
echo end | dd of=sparse bs=4k seek=300 2>/dev/null
dd if=a/9 of=sparse bs=1k seek=20 conv=notrunc,fsync 2>/dev/null
chmod 750 d
rm -r a/b d/copy
mkfifo pipe
(echo 'through a pipe' >pipe) &
cat pipe
wait
stat -c '%F' pipe
rm pipe
find . | sort | while read -r path; do stat -c '%n %F %a %h' "$path"; done
find . -type f | sort | xargs md5sum
# Locks hold between the container and others: who started it looks, as long as it is held.
flock -x locked sh -c "echo held >told; i=0; while [ ! -e seen ] && [ \$i -lt 100 ]; do sleep 0.1; i=\$((i + 1)); done"
cat seen
rm told seen locked
