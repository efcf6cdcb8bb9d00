/* Preloaded to an emulated guest's QEMU by `./x bench runstate`: who waits for a mutex spins a while before it sleeps.
 *
 * Without KVM a call to a vCPU goes through QEMU's main thread, which holds the lock of all emulation as it interrupts the
 * vCPU, and the vCPU takes that lock to see why. It would sleep for some microseconds, and by then the host has given its
 * processor to another one. An interrupt of a KVM guest does not take the processor from the vCPU that it is for. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <time.h>

#define SPIN_NS 100000
#define TRIES 64

static long since_ns(const struct timespec *begun)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - begun->tv_sec) * 1000000000L + now.tv_nsec - begun->tv_nsec;
}

int pthread_mutex_lock(pthread_mutex_t *mutex)
{
    static int (*lock)(pthread_mutex_t *);
    struct timespec begun;
    int tried;

    if ((tried = pthread_mutex_trylock(mutex)) != EBUSY)
        return tried;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do {
        for (int i = 0; i < TRIES; i++) {
            if ((tried = pthread_mutex_trylock(mutex)) != EBUSY)
                return tried;
            __builtin_ia32_pause();
        }
    } while (since_ns(&begun) < SPIN_NS);
    if (!lock)
        lock = (int (*)(pthread_mutex_t *))dlsym(RTLD_NEXT, "pthread_mutex_lock");
    return lock(mutex);
}
