/* A log-structured store that maps its tables: the smallest that does what such stores do to files.
 *
 *     store RECORDS OPERATIONS
 *
 * A record has a key and 1,000 bytes. Each put appends one to `log` (O_APPEND) and keeps it in memory. When 2 MiB have come
 * together they are written in order of their keys to a table of their own, by 64 KiB, synced with fdatasync, closed, opened again
 * to read, mapped shared, and the log begins anew. A get looks in memory, then in the one mapped table that has the newest
 * record. After each eight such tables these are merged into new ones, without what has been overwritten, and removed.
 *
 * Phases: `fill` puts all keys in random order; `update` is half gets and half puts of random keys; `change` gets a record and
 * puts it again. What a get finds is compared. Prints the seconds of each phase as JSON. Leaves the tables and the log, which
 * are the same in each run with the same numbers. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

enum {
    VALUE = 1000,
    RECORD = VALUE + 8,
    WRITE = 64 << 10,
    TABLE = (2 << 20) / RECORD, /* records of one */
    TABLES = 4096,
    MERGED = 8,
    IN_MEMORY = -1,
    NOWHERE = -2,
};

struct record {
    uint64_t key;
    char value[VALUE];
};

struct table {
    const struct record *records;
    uint32_t count, number;
};

/* Where the newest record of a key is: in which table, or in memory, and at which place. */
struct where {
    int32_t table;
    uint32_t place;
    uint32_t version;
};

static struct where *index_of;
static struct record *fresh;
static uint32_t fresh_count, tables_made, unmerged;
static struct table tables[TABLES];
static int table_count, log_file;

static void fill_value(char *value, uint64_t key, uint32_t version) {
    memset(value, (char)(key * 31 + version), VALUE);
    memcpy(value, &version, sizeof version);
}

static void write_all(int fd, const char *from, size_t len) {
    while (len > 0) {
        ssize_t done = write(fd, from, len < WRITE ? len : WRITE);
        if (done <= 0)
            fail("write");
        from += done, len -= done;
    }
}

/* Writes records to a new table, and maps it. */
static struct table make_table(const struct record *records, uint32_t count) {
    char name[32];
    snprintf(name, sizeof name, "table-%u", tables_made);
    int fd = open(name, O_CREAT | O_EXCL | O_WRONLY, 0644);
    if (fd < 0)
        fail(name);
    write_all(fd, (const char *)records, (size_t)count * RECORD);
    if (fdatasync(fd) || close(fd) || (fd = open(name, O_RDONLY)) < 0)
        fail(name);
    void *map = mmap(NULL, (size_t)count * RECORD, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED || close(fd))
        fail(name);
    return (struct table){map, count, tables_made++};
}

static int by_key(const void *one, const void *other) {
    uint64_t a = ((const struct record *)one)->key, b = ((const struct record *)other)->key;
    return a < b ? -1 : a > b;
}

static void remove_table(struct table *table) {
    char name[32];
    snprintf(name, sizeof name, "table-%u", table->number);
    if (munmap((void *)table->records, (size_t)table->count * RECORD) || unlink(name))
        fail(name);
}

static void note(int table) {
    for (uint32_t place = 0; place < tables[table].count; place++) {
        struct where *where = &index_of[tables[table].records[place].key];
        where->table = table, where->place = place;
    }
}

/* Merges the newest tables. */
static void merge(void) {
    int first = table_count - MERGED;
    size_t most = 0, count = 0;
    for (int table = first; table < table_count; table++)
        most += tables[table].count;
    struct record *kept = malloc(most * RECORD);
    if (!kept)
        fail("memory");
    for (int table = first; table < table_count; table++)
        for (uint32_t place = 0; place < tables[table].count; place++) {
            const struct record *record = &tables[table].records[place];
            const struct where *where = &index_of[record->key];
            if (where->table == table && where->place == place)
                kept[count++] = *record;
        }
    qsort(kept, count, RECORD, by_key);
    struct table merged[MERGED];
    int parts = 0;
    for (size_t at = 0; at < count; at += TABLE)
        merged[parts++] = make_table(kept + at, count - at < TABLE ? count - at : TABLE);
    for (int table = first; table < table_count; table++)
        remove_table(&tables[table]);
    free(kept);
    memcpy(tables + first, merged, parts * sizeof *tables);
    table_count = first + parts;
    for (int table = first; table < table_count; table++)
        note(table);
}

static void flush(void) {
    if (table_count == TABLES) {
        fprintf(stderr, "too many tables\n");
        exit(1);
    }
    /* In memory a key is there once. */
    qsort(fresh, fresh_count, RECORD, by_key);
    tables[table_count] = make_table(fresh, fresh_count);
    note(table_count++);
    fresh_count = 0;
    if (ftruncate(log_file, 0))
        fail("log");
    if (++unmerged == MERGED) {
        merge();
        unmerged = 0;
    }
}

static void put(uint64_t key) {
    struct where *where = &index_of[key];
    uint32_t place = where->table == IN_MEMORY ? where->place : fresh_count++;
    struct record *record = &fresh[place];
    record->key = key;
    fill_value(record->value, key, ++where->version);
    where->table = IN_MEMORY, where->place = place;
    if (write(log_file, record, RECORD) != RECORD)
        fail("log");
    if (fresh_count == TABLE)
        flush();
}

static void get(uint64_t key) {
    char expected[VALUE];
    const struct where *where = &index_of[key];
    const struct record *record =
        where->table == IN_MEMORY ? &fresh[where->place] : &tables[where->table].records[where->place];
    fill_value(expected, key, where->version);
    if (record->key != key || memcmp(record->value, expected, VALUE)) {
        fprintf(stderr, "another record than was put\n");
        exit(1);
    }
}

int main(int argc, char **argv) {
    size_t records = argc == 3 ? strtoull(argv[1], NULL, 10) : 0, operations = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
    if (records == 0)
        return 2;
    index_of = calloc(records, sizeof *index_of);
    fresh = malloc((size_t)TABLE * RECORD);
    uint32_t *order = malloc(records * sizeof *order);
    log_file = open("log", O_CREAT | O_TRUNC | O_APPEND | O_WRONLY, 0644);
    if (!index_of || !fresh || !order || log_file < 0)
        fail("log");
    unsigned seed = 1;
    for (size_t key = 0; key < records; key++)
        order[key] = key, index_of[key].table = NOWHERE;
    for (size_t key = records - 1; key > 0; key--) {
        size_t other = rand_r(&seed) % (key + 1);
        uint32_t kept = order[key];
        order[key] = order[other], order[other] = kept;
    }
    double begun = now();
    for (size_t key = 0; key < records; key++)
        put(order[key]);
    double filled = now();
    for (size_t done = 0; done < operations; done++) {
        uint64_t key = rand_r(&seed) % records;
        done % 2 ? put(key) : get(key);
    }
    double updated = now();
    for (size_t done = 0; done < operations / 2; done++) {
        uint64_t key = rand_r(&seed) % records;
        get(key);
        put(key);
    }
    double changed = now();
    printf("{\"fill\": %.9f, \"update\": %.9f, \"change\": %.9f}\n", filled - begun, updated - filled, changed - updated);
    return 0;
}
