/*
 * xdp_pass INTERFACE: attaches an XDP program that passes every frame on, says "attached", and holds it
 * until its input ends. Status 1, with the kernel's words, where the driver refuses. For guests of tests,
 * which have no compiler for BPF: the program is two instructions, r0 = XDP_PASS; exit.
 */
#include <errno.h>
#include <linux/bpf.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int bpf(int command, union bpf_attr *attributes)
{
    return syscall(SYS_bpf, command, attributes, sizeof *attributes);
}

int main(int count, char **words)
{
    struct bpf_insn program[] = {
        { .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = BPF_REG_0, .imm = XDP_PASS },
        { .code = BPF_JMP | BPF_EXIT },
    };
    union bpf_attr load, link;
    char byte;

    memset(&load, 0, sizeof load);
    load.prog_type = BPF_PROG_TYPE_XDP;
    load.insns = (unsigned long)program;
    load.insn_cnt = sizeof program / sizeof *program;
    load.license = (unsigned long)"GPL";
    int loaded = bpf(BPF_PROG_LOAD, &load);
    if (loaded < 0) {
        printf("load: %s\n", strerror(errno));
        return 2;
    }
    memset(&link, 0, sizeof link);
    link.link_create.prog_fd = loaded;
    link.link_create.target_ifindex = if_nametoindex(count > 1 ? words[1] : "");
    link.link_create.attach_type = BPF_XDP;
    /* In the driver: the generic way would take any frame. */
    link.link_create.flags = 1U << 2;
    if (bpf(BPF_LINK_CREATE, &link) < 0) {
        printf("attach: %s\n", strerror(errno));
        return 1;
    }
    printf("attached\n");
    fflush(stdout);
    while (read(0, &byte, 1) > 0)
        ;
    return 0;
}
