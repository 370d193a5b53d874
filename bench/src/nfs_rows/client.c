/* A client of NFS for benchmarks, through libnfs: one connection, one kind of work, one line of figures.
 *
 * client URL io (randread|randwrite|read|write) FILE BYTES REQUEST DEPTH SECONDS
 *     Requests of REQUEST bytes, DEPTH in flight; SECONDS of 0 is once over the file. Writes end with an fsync,
 *     which is in the time. Prints requests, seconds, and the median and 99th percentile in microseconds.
 * client URL small FOLDER COUNT
 *     Creates, stats, reads and deletes files of 4 KiB. Prints the seconds of each.
 * client URL fsync FILE SECONDS
 *     Writes 4 KiB and calls fsync. Prints calls, seconds, and the two percentiles.
 * client URL names FOLDER COUNT
 *     Creates empty files, 64 in flight, and lists them. Prints the seconds of each.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <nfsc/libnfs.h>

#define SMALL 4096

static struct nfs_context *nfs;

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, nfs_get_error(nfs));
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int compare(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

/* Latencies, of which a random part is kept once there are very many. */
static double *latencies;
static size_t kept, seen;
#define KEPT_MAX (1u << 21)

static void keep(double latency) {
    seen++;
    if (kept < KEPT_MAX)
        latencies[kept++] = latency;
    else if ((uint64_t)random() % seen < KEPT_MAX)
        latencies[random() % KEPT_MAX] = latency;
}

static double percentile(double part) {
    return kept ? latencies[(size_t)((kept - 1) * part)] * 1e6 : 0;
}

/* The state of the requests in flight. */
static struct {
    struct nfsfh *file;
    int is_write, is_random;
    uint64_t bytes, request, next, done, most;
    double end;
    unsigned flying;
    uint64_t random;
} load;

struct slot {
    char *buffer;
    double begun;
};

static void answered(int error, struct nfs_context *context, void *data, void *private);

static void issue(struct slot *slot) {
    uint64_t places = load.bytes / load.request, offset;
    if (load.is_random) {
        load.random ^= load.random << 13;
        load.random ^= load.random >> 7;
        load.random ^= load.random << 17;
        offset = load.random % places * load.request;
    } else {
        offset = load.next++ % places * load.request;
    }
    slot->begun = now();
    int refused = load.is_write
        ? nfs_pwrite_async(nfs, load.file, offset, load.request, slot->buffer, answered, slot)
        : nfs_pread_async(nfs, load.file, offset, load.request, answered, slot);
    if (refused)
        fail("a request");
    load.flying++;
}

static void answered(int error, struct nfs_context *context, void *data, void *private) {
    struct slot *slot = private;
    (void)context;
    if (error < 0 || (uint64_t)error != load.request) {
        fprintf(stderr, "a request: %d %s\n", error, error < 0 ? (char *)data : "");
        exit(1);
    }
    double at = now();
    keep(at - slot->begun);
    load.flying--;
    load.done++;
    if (load.most ? load.done + load.flying < load.most : at < load.end)
        issue(slot);
}

static void wait_for_all(unsigned *flying) {
    while (*flying) {
        struct pollfd one = { .fd = nfs_get_fd(nfs), .events = nfs_which_events(nfs) };
        if (poll(&one, 1, 60000) <= 0)
            fail("poll");
        if (nfs_service(nfs, one.revents) < 0)
            fail("the connection");
    }
}

static void io(char **arguments) {
    const char *pattern = arguments[0];
    load.is_write = strstr(pattern, "write") != NULL;
    load.is_random = strncmp(pattern, "rand", 4) == 0;
    load.bytes = strtoull(arguments[2], NULL, 10);
    load.request = strtoull(arguments[3], NULL, 10);
    unsigned depth = atoi(arguments[4]);
    double seconds = atof(arguments[5]);
    load.random = 88172645463325252ull + time(NULL) * 2654435761ull;
    if (nfs_open(nfs, arguments[1], O_RDWR | O_CREAT, &load.file))
        fail("open");
    load.most = seconds > 0 ? 0 : load.bytes / load.request;
    double begin = now();
    load.end = begin + seconds;
    for (unsigned index = 0; index < depth && (!load.most || index < load.most); index++) {
        struct slot *slot = malloc(sizeof *slot);
        slot->buffer = malloc(load.request);
        for (uint64_t byte = 0; byte < load.request; byte++)
            slot->buffer[byte] = byte * 31 + index + (byte >> 8);
        issue(slot);
    }
    wait_for_all(&load.flying);
    if (load.is_write && nfs_fsync(nfs, load.file))
        fail("fsync");
    double taken = now() - begin;
    nfs_close(nfs, load.file);
    qsort(latencies, kept, sizeof *latencies, compare);
    printf("%llu %.6f %.1f %.1f\n", (unsigned long long)load.done, taken, percentile(0.5), percentile(0.99));
}

static void small(char **arguments) {
    int count = atoi(arguments[1]);
    char name[512], data[SMALL], back[SMALL];
    memset(data, 7, sizeof data);
    if (nfs_mkdir(nfs, arguments[0]))
        fail("mkdir");
    double marks[5] = { now() };
    for (int step = 0; step < 4; step++) {
        for (int number = 0; number < count; number++) {
            struct nfsfh *file;
            struct nfs_stat_64 stat;
            snprintf(name, sizeof name, "%s/file-%06d", arguments[0], number);
            switch (step) {
            case 0:
                if (nfs_creat(nfs, name, 0644, &file) || nfs_pwrite(nfs, file, 0, SMALL, data) != SMALL
                    || nfs_fsync(nfs, file) || nfs_close(nfs, file))
                    fail("create");
                break;
            case 1:
                if (nfs_stat64(nfs, name, &stat) || stat.nfs_size != SMALL)
                    fail("stat");
                break;
            case 2:
                if (nfs_open(nfs, name, O_RDONLY, &file) || nfs_pread(nfs, file, 0, SMALL, back) != SMALL
                    || nfs_close(nfs, file))
                    fail("read");
                break;
            default:
                if (nfs_unlink(nfs, name))
                    fail("unlink");
            }
        }
        marks[step + 1] = now();
    }
    if (nfs_rmdir(nfs, arguments[0]))
        fail("rmdir");
    for (int step = 0; step < 4; step++)
        printf("%.6f ", marks[step + 1] - marks[step]);
    printf("\n");
}

static void synced(char **arguments) {
    struct nfsfh *file;
    char data[SMALL];
    double seconds = atof(arguments[1]), begin = now();
    unsigned long long calls = 0;
    memset(data, 7, sizeof data);
    if (nfs_open(nfs, arguments[0], O_RDWR | O_CREAT, &file))
        fail("open");
    while (now() < begin + seconds) {
        double at = now();
        if (nfs_pwrite(nfs, file, calls % 4096 * SMALL, SMALL, data) != SMALL || nfs_fsync(nfs, file))
            fail("fsync");
        keep(now() - at);
        calls++;
    }
    double taken = now() - begin;
    nfs_close(nfs, file);
    qsort(latencies, kept, sizeof *latencies, compare);
    printf("%llu %.6f %.1f %.1f\n", calls, taken, percentile(0.5), percentile(0.99));
}

static struct {
    const char *folder;
    int next, count;
    unsigned flying;
} naming;

static void made(int error, struct nfs_context *context, void *data, void *private);

static void make_next(void) {
    char name[512];
    if (naming.next >= naming.count)
        return;
    snprintf(name, sizeof name, "%s/file-%07d", naming.folder, naming.next++);
    if (nfs_mknod_async(nfs, name, S_IFIFO | 0644, 0, made, NULL))
        fail("mknod");
    naming.flying++;
}

static void made(int error, struct nfs_context *context, void *data, void *private) {
    (void)context;
    (void)private;
    if (error < 0) {
        fprintf(stderr, "mknod: %d %s\n", error, (char *)data);
        exit(1);
    }
    naming.flying--;
    make_next();
}

static void names(char **arguments) {
    naming.folder = arguments[0];
    naming.count = atoi(arguments[1]);
    if (nfs_mkdir(nfs, naming.folder))
        fail("mkdir");
    double begin = now();
    for (int index = 0; index < 64; index++)
        make_next();
    wait_for_all(&naming.flying);
    double created = now();
    struct nfsdir *directory;
    int found = 0;
    if (nfs_opendir(nfs, naming.folder, &directory))
        fail("opendir");
    while (nfs_readdir(nfs, directory))
        found++;
    double listed = now();
    nfs_closedir(nfs, directory);
    if (found < naming.count)
        fail("names are missing");
    printf("%.6f %.6f\n", created - begin, listed - created);
}

int main(int count, char **arguments) {
    if (count < 4)
        return 2;
    latencies = malloc(sizeof *latencies * KEPT_MAX);
    nfs = nfs_init_context();
    struct nfs_url *url = nfs_parse_url_dir(nfs, arguments[1]);
    if (!url || nfs_mount(nfs, url->server, url->path))
        fail("mount");
    if (!strcmp(arguments[2], "io") && count == 9)
        io(arguments + 3);
    else if (!strcmp(arguments[2], "small") && count == 5)
        small(arguments + 3);
    else if (!strcmp(arguments[2], "fsync") && count == 5)
        synced(arguments + 3);
    else if (!strcmp(arguments[2], "names") && count == 5)
        names(arguments + 3);
    else
        return 2;
    return 0;
}
