/* The wall clock of a program that is started with this preloaded: off by the seconds that a file holds. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    const char *path = getenv("WALL_CLOCK_OFF");
    if (result == 0 && clock == CLOCK_REALTIME && path != NULL) {
        FILE *file = fopen(path, "r");
        long off = 0;
        if (file != NULL) {
            if (fscanf(file, "%ld", &off) == 1)
                now->tv_sec += off;
            fclose(file);
        }
    }
    return result;
}
