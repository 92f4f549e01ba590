# shellcheck shell=bash disable=SC2016 # scripts for another shell
# Public suites of file system calls, case by case: each must end under Forebay as it does plainly. Sourced by a script that has
# sourced lib.sh, and bigger.sh for `needs`.
#
# $PJDFSTEST: the program. $STRESS_OPS: operations of each stressor.

# Each case in a process of its own: many become another user, and a process that does so leaves the session.
if ! wanted pjdfstest; then
    :
elif [[ ! -x $PJDFSTEST ]]; then
    skipped pjdfstest "pjdfstest is not installed: scripts/install-test-tools.sh says why"
else
    mkdir "$WHERE/pjdfstest.d"
    cat >"$WHERE/pjdfstest.d/settings.toml" <<'END'
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
[settings]
naptime = 0.01
expected_failures = []
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"], ["bin", "bin"]]
END
    pjdfstest=("$PJDFSTEST" -c "$WHERE/pjdfstest.d/settings.toml" -p .)
    # Those that can run here; which they are depends on the file system.
    (cd "$WHERE/pjdfstest.d" && "${pjdfstest[@]}" 2>&1) |
        sed -n 's/^\([a-z_0-9:]*\) *\(ok\|FAILED\).*/\1/p' | sort >"$WHERE/pjdfstest.d/cases"
    if (($(wc -l <"$WHERE/pjdfstest.d/cases") < 300)); then
        failed pjdfstest "only $(wc -l <"$WHERE/pjdfstest.d/cases") cases can run"
    else
        # shellcheck disable=SC2089 # its own shell reads the quotes
        same pjdfstest "chmod 777 .
            while read -r name; do
                ${pjdfstest[*]} --exact \"\$name\" 2>&1 </dev/null | grep \"^\$name \"
            done <$WHERE/pjdfstest.d/cases >../verdicts
            grep -c 'ok\$' ../verdicts; grep -v 'ok\$' ../verdicts"
    fi
    rm -rf "$WHERE/pjdfstest.d"
fi

# Name, and operations for each 10 of the others'. What is left out waits for seconds, needs more rights than are given, or is
# about other things than files. inotify and dnotify wait for events of bytes that are in memory and come when these are written.
stressors='access:10 chdir:2 chmod:10 chown:10 copy-file:10 dentry:10 dir:10 dirdeep:10 dirmany:10 dup:10 fallocate:10 fcntl:10
    fiemap:10 file-ioctl:10 filename:10 flock:10 fsize:10 fstat:10 getdent:10 handle:10 hdd:10 io:2 iomix:10
    lease:10 link:1 locka:10 lockf:10 lockofd:10 mknod:10 open:10 rename:10 seek:20 symlink:1 sync-file:5 touch:10 utime:10
    xattr:1 aio:10 aiol:10 io-uring:10 readahead:2 revio:20 sendfile:10 splice:10 tee:10 vm-splice:10 mmapfixed:2 mmapmany:5
    msync:10 madvise:2 fork:10 vfork:10 exec:10 clone:2 fault:10 sockfd:10 pipe:10 fifo:10 chattr:10 fanotify:1'
# Sizes that fit here, for those that have one: an option that is out of range ends stress-ng before it has done anything.
sizes='hdd=16M iomix=16M fallocate=16M copy-file=128M sync-file=4M readahead=16M'
if needs stress_ng stress-ng; then
    # Its files go when it ends. Options differ between versions: what is not known here ends with another code, on both sides.
    patience=$((patience * 4)) same stress_ng "
        for stressor in ${stressors//$'\n'/ }; do
            name=\${stressor%:*} ops=\$((\${stressor#*:} * ${STRESS_OPS:-20} / 10))
            size=' $sizes ' size=\${size#* \$name=} size=\${size%% *}
            said=\$(timeout 50 stress-ng --temp-path . --seed 7 \${size:+--\$name-bytes \$size} --\$name 1 --\$name-ops \$ops --verify -t 40 2>&1)
            code=\$?; echo \$name exit \$code; [ \$code = 0 ] && echo \$name >>../../stress_ended || echo \"\$said\" >&2
            echo \"\$said\" | grep -o -E 'fail:.*' | sed 's/[0-9]\\{3,\\}/N/g'
            rm -rf tmp-stress-ng*
        done"
    # Where most do not even begin, nothing has been compared.
    ended=$(wc -l <"$WHERE/stress_ended")
    ((ended >= 90)) || failed stress_ng "only $ended stressors of both sides have ended well"
    rm -f "$WHERE/stress_ended"
fi
