/* Preloaded to the servers in the guest of `./x bench runstate`: all have the same port, and a datagram is for the one that was
 * started as the n-th if processor n received it, as servers with a worker for each processor have it (SO_REUSEPORT with a
 * classic filter: socket(7), and the kernel's tools/testing/selftests/net/reuseport_bpf_cpu.c for the idea). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/filter.h>
#include <stdio.h>
#include <sys/socket.h>

int bind(int socket, const struct sockaddr *address, socklen_t length)
{
    static int (*next)(int, const struct sockaddr *, socklen_t);
    struct sock_filter code[] = {
        { BPF_LD | BPF_W | BPF_ABS, 0, 0, SKF_AD_OFF + SKF_AD_CPU },
        { BPF_RET | BPF_A, 0, 0, 0 },
    };
    struct sock_fprog program = { sizeof(code) / sizeof(*code), code };
    int on = 1, bound;

    if (!next)
        next = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "bind");
    if (setsockopt(socket, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)))
        perror("SO_REUSEPORT");
    bound = next(socket, address, length);
    if (!bound && setsockopt(socket, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof(program)))
        perror("SO_ATTACH_REUSEPORT_CBPF");
    return bound;
}
