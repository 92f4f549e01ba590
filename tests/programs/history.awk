#!/usr/bin/awk -f
# A history of `commits` commits for git fast-import: a hundred files in ten directories, a few of which change each time.
function content(file, version,    text, line) {
    text = ""
    for (line = 0; line < 40 + file; line++)
        text = text "line " line " of file " file (line == version % (40 + file) ? ", changed in " version : "") "\n"
    return text
}
BEGIN {
    for (number = 1; number <= commits; number++) {
        print "commit refs/heads/main\ncommitter Name <name@example.org> " 1700000000 + number * 60 " +0000"
        message = "Change " number
        print "data " length(message) "\n" message
        for (change = 0; change < (number == 1 ? 100 : 6); change++) {
            file = number == 1 ? change : (number * 37 + change * 11) % 100
            text = content(file, number)
            printf "M 100644 inline dir%d/file%d.txt\ndata %d\n%s\n", file % 10, file, length(text), text
        }
        if (number % 50 == 0) {
            # One that is large and does not compress to nothing.
            text = ""
            for (line = 0; line < 4000; line++) text = text (line * 7919 + number * 104729) % 1000003 " " line * line % 65537 "\n"
            printf "M 100644 inline large/%d.dat\ndata %d\n%s\n", number, length(text), text
        }
    }
    print "done"
}
