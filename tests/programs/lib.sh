# shellcheck shell=bash
# What program tests share. Source it, then call `programs_begin`.
#
#   same NAME SCRIPT [LEAST]
#                        runs a bash script plainly and under Forebay, each in an empty directory of its own; exit code, output
#                        and the tree that an outsider finds afterwards must be the same, and at least LEAST bytes must have
#                        been written through the engine
#   holds NAME COMMAND   runs a command under Forebay in an empty directory; it must succeed
#   passed NAME, failed NAME REASON
#   programs_end         the closing line
#
# Needs: $forebay (forebay, its library beside it), $WHERE (a directory on the file system to be tested).
# $ONLY, if set, is a pattern: other tests are passed over.

# Small enough for eviction, and so that the smallest files are managed as well.
export FOREBAY_MEMORY=${FOREBAY_MEMORY:-96MiB}
export FOREBAY_SMALL_FILE_BYTES=${FOREBAY_SMALL_FILE_BYTES:-0}
export FOREBAY_LARGE_FILE_BYTES=${FOREBAY_LARGE_FILE_BYTES:-0}
# Closes leave to the keeper whatever they may.
export FOREBAY_CLOSE_BEHIND_BYTES=${FOREBAY_CLOSE_BEHIND_BYTES:-1}
export LC_ALL=C
# A program that hangs is ended, and fails.
patience=${PATIENCE:-60}

programs_passed=0
programs_failed=0
programs_skipped=0

passed() {
    programs_passed=$((programs_passed + 1))
    printf 'ok    %s%s\n' "$1" "${2:+ ($2)}"
}

failed() {
    programs_failed=$((programs_failed + 1))
    printf 'FAIL  %s: %s\n' "$1" "$2"
}

skipped() {
    programs_skipped=$((programs_skipped + 1))
    printf 'skip  %s: %s\n' "$1" "$2"
}

wanted() {
    # shellcheck disable=SC2053 # a pattern
    [[ -z ${ONLY:-} || $1 == $ONLY ]]
}

# forebay_run ARGUMENTS...: with the daemon leaving soon after.
forebay_run() {
    "$forebay" run --require --linger 5 "$@"
}

# What is in a directory: names, kinds, modes, sizes, links and contents.
tree_of() {
    (cd "$1" && find . -printf '%P %y %m %l' \( -type f -printf ' %s' -o -true \) -printf '\n' | sort &&
        find . -type f -print0 | sort -z | xargs -0 -r sha256sum)
}

# bytes_to_memory REPORT: how much a run wrote through the engine.
bytes_through() {
    python3 -c 'import json,sys
s = json.load(open(sys.argv[1]))["session"]
print(s["scrap_bytes"] + s["direct_bytes"])' "$1" 2>/dev/null || echo 0
}

same() {
    local name=$1 script=$2 least=${3:-0} side dir code_plain code_managed bytes
    wanted "$name" || return 0
    for side in plain managed; do
        dir=$WHERE/$name-$side
        mkdir "$dir" "$dir/work"
        printf '%s\n' "$script" >"$dir/script"
    done
    (cd "$WHERE/$name-plain/work" && timeout --kill-after=5 "$patience" bash ../script >../out 2>../err </dev/null)
    code_plain=$?
    (cd "$WHERE/$name-managed/work" && timeout --kill-after=5 "$patience" \
        "$forebay" run --require --linger 5 --report=../report --json -- \
        bash ../script >../out 2>../err </dev/null)
    code_managed=$?
    for side in plain managed; do
        tree_of "$WHERE/$name-$side/work" >"$WHERE/$name-$side/tree"
        # Both sides say the same, their directories' names apart.
        sed -i "s|$name-$side|HERE|g" "$WHERE/$name-$side/out" "$WHERE/$name-$side/err"
    done
    bytes=$(bytes_through "$WHERE/$name-managed/report")
    if [[ $code_plain -ne $code_managed ]]; then
        failed "$name" "exit $code_plain plainly, $code_managed under Forebay: $(tail -n 3 "$WHERE/$name-managed/err")"
    elif ! diff "$WHERE/$name-plain/out" "$WHERE/$name-managed/out" >"$WHERE/$name.diff"; then
        failed "$name" "another output: $(head -n 6 "$WHERE/$name.diff")"
    elif ! diff "$WHERE/$name-plain/tree" "$WHERE/$name-managed/tree" >"$WHERE/$name.diff"; then
        failed "$name" "other files: $(head -n 6 "$WHERE/$name.diff")"
    elif ((bytes < least)); then
        failed "$name" "only $bytes bytes through the engine, of at least $least"
    else
        passed "$name" "$bytes bytes through the engine"
        rm -rf "${WHERE:?}/$name-plain" "${WHERE:?}/$name-managed" "$WHERE/$name.diff"
    fi
}

# holds NAME PROGRAM...: it ends well under Forebay; with $least set, at least so many bytes go through the engine.
holds() {
    local name=$1 output code bytes said='' report=()
    shift
    wanted "$name" || return 0
    mkdir -p "$WHERE/$name"
    [[ -z ${least:-} ]] || report=("--report=$WHERE/$name.report" --json)
    output=$(cd "$WHERE/$name" && timeout --kill-after=5 "$patience" \
        "$forebay" run --require --linger 5 "${report[@]}" -- "$@" 2>&1 </dev/null)
    code=$?
    if ((code != 0)); then
        failed "$name" "exit $code: $(tail -n 12 <<<"$output")"
        return
    fi
    if [[ -n ${least:-} ]]; then
        bytes=$(bytes_through "$WHERE/$name.report")
        said="$bytes bytes through the engine"
        if ((bytes < least)); then
            failed "$name" "only $said, of at least $least"
            return
        fi
    fi
    passed "$name" ${said:+"$said"}
    rm -rf "${WHERE:?}/$name" "$WHERE/$name.report"
}

programs_end() {
    local closing="programs: $programs_passed passed, $programs_failed failed"
    [[ $programs_skipped -eq 0 ]] || closing+=", $programs_skipped skipped"
    printf '%s\n' "$closing"
    [[ $programs_failed -eq 0 ]]
}
