#!/usr/bin/env bash
# The files of dist, without a service or a container: what they run is a command that there is, systemd finds nothing wrong with the unit, and the
# container file has what it names. Without systemd-analyze that of the unit is skipped.
set -Euo pipefail
cd "$(dirname "$0")/../.." || exit 1
target=$PWD/${CARGO_TARGET_DIR:-target}
bin=${FOREBAY_TEST_BIN:-}
if [[ -z $bin ]]; then
    cargo build --quiet -p forebay-cli || exit 1
    bin=$target/debug
fi
bin=$(realpath "$bin") forebay=$(realpath "$bin")/forebay
unset FOREBAY_TEST_BIN
scratch=$(mktemp -d) || exit 1
trap 'rm -rf --one-file-system "$scratch"' EXIT
# shellcheck source=tests/lib/expect.sh
. tests/lib/expect.sh
printf '%s\n' 'servers = ["127.0.0.1:7411"]' >"$scratch/pool.toml"
# A command for a server that the pool does not have: so it is understood, and ends.
understood() {
    local code=0 answer
    answer=$("$@" 2>&1) || code=$?
    echo "$answer"
    ((code == 2)) && [[ $answer == *'has the servers 1 to 1'* ]]
}

skipped=0
unit=$scratch/forebay-serve@work.service
# The program lies elsewhere than on a host that has it installed.
sed "s|/usr/local/bin/forebay|$forebay|" dist/forebay-serve@.service >"$unit"
if command -v systemd-analyze >/dev/null; then
    verified() {
        # It ends well whatever it says, and says nothing where nothing is wrong.
        systemd-analyze verify --recursive-errors=no --man=no "$1" 2>&1 | { ! grep -F "$(basename "$1")"; }
    }
    expect 'systemd finds nothing wrong with the unit' verified "$unit"
    sed 's|^Restart=.*|Restart=perhaps|' "$unit" >"$scratch/forebay-wrong@work.service"
    wrong() { ! verified "$scratch/forebay-wrong@work.service"; }
    expect 'and would find what is' wrong
else
    printf 'skipped: the unit: systemd-analyze is missing (package systemd)\n'
    skipped=2
fi
command=$(sed -n 's|^ExecStart=||p' "$unit" | sed "s|/etc/forebay/pools/%i.toml|$scratch/pool.toml|; s|\${SERVER}|2|")
# shellcheck disable=SC2086 # words
expect 'its command is one that there is' understood $command

# said FILE INSTRUCTION: what a container file says there.
said() { sed -n "s/^$2 //p" "$1"; }
# A container file is what an engine understands, and names what there is.
container() {
    local file=$1 from to words line
    while read -r line; do
        [[ $line =~ ^(#.*|(FROM|RUN|COPY|VOLUME|USER|STOPSIGNAL|ENTRYPOINT|CMD)\ .*|)$ ]] || {
            echo "not understood: $line"
            return 1
        }
    done <"$file"
    read -r _ from to _ < <(said "$file" COPY)
    [[ -n $to && -e $bin/$from ]] || {
        echo "the context has no ${from:-program}"
        return 1
    }
    # The lists are those of Python as well.
    words=$(python3 -c 'import ast, sys; print(*(ast.literal_eval(sys.argv[1])))' "$(said "$file" ENTRYPOINT)") || return 1
    [[ $words == "$to "* ]] || {
        echo "$words begins with what is not there; $to is"
        return 1
    }
    local user
    user=$(said "$file" USER)
    [[ $user != root && $(said "$file" RUN) == *"useradd "*" $user "* ]] || {
        echo "who is $user?"
        return 1
    }
    # shellcheck disable=SC2086 # words
    understood "$forebay" ${words#"$to"} "$scratch/pool.toml" --server 2
}
expect 'the container file names what there is' container dist/Containerfile
planted() {
    local change
    for change in 's/forebay", "serve"/forebay", "lend"/' 's/^USER .*/USER root/' 's/^COPY --chmod=755 forebay/COPY --chmod=755 forebayd/' 's/^STOPSIGNAL/SIGNAL/'; do
        sed "$change" dist/Containerfile >"$scratch/Containerfile"
        ! container "$scratch/Containerfile" || return 1
    done
}
expect 'and would find what is not' planted
# What the base has; another library would have to be installed.
libraries() {
    ! ldd "$forebay" | sed -E 's/^\s*(\S+).*/\1/' | grep -vE '^(linux-vdso|lib(gcc_s|c|m|dl|pthread|rt)|/lib.*/ld-linux-[^/]*)\.so'
}
expect 'the program needs no library that the base has not' libraries
printf '%d passed, %d failed, %d skipped\n' "$passed" "$failed" "$skipped"
((failed == 0))
