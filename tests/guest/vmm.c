/* A VMM of one vCPU, whose guest is three functions of a kernel's half of the addresses, one after the other: f_out
 * writes to port 0x608 three times, f_mmio reads an address that no memory is at, f_hlt halts. It runs until it is
 * killed; each time that it comes to user space it only goes on. Started by the case guest/exits, in a guest. */
#include <fcntl.h>
#include <linux/kvm.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#define MEMORY (1 << 21)
#define UPPER 0xffffffff80000000ull
#define TABLE(at, next) ((uint64_t *)(memory + (at)))[511] = ((uint64_t *)(memory + (at)))[0] = (next) | 3
#define CPUIDS 200

static void need(int is_well, const char *what)
{
    if (!is_well) {
        perror(what);
        exit(1);
    }
}

int main(void)
{
    int kvm = open("/dev/kvm", O_RDWR);
    need(kvm >= 0, "/dev/kvm");
    int vm = ioctl(kvm, KVM_CREATE_VM, 0);
    need(vm >= 0, "a VM");
    ioctl(vm, KVM_SET_TSS_ADDR, 0xfffbd000);
    uint8_t *memory = mmap(0, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct kvm_userspace_memory_region region = {
        .memory_size = MEMORY, .userspace_addr = (uintptr_t)memory};
    need(memory != MAP_FAILED && !ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region), "memory");
    /* Four levels: the first and the last GiBs are one, of pages of 2 MiB. */
    TABLE(0x1000, 0x2000);
    ((uint64_t *)(memory + 0x2000))[510] = ((uint64_t *)(memory + 0x2000))[0] = 0x3003;
    for (uint64_t page = 0; page < 512; page++)
        ((uint64_t *)(memory + 0x3000))[page] = page << 21 | 0x83;
    int cpu = ioctl(vm, KVM_CREATE_VCPU, 0);
    need(cpu >= 0, "a vCPU");
    struct kvm_cpuid2 *cpuid = calloc(1, sizeof *cpuid + CPUIDS * sizeof *cpuid->entries);
    cpuid->nent = CPUIDS;
    need(!ioctl(kvm, KVM_GET_SUPPORTED_CPUID, cpuid), "what CPUID may say");
    need(!ioctl(cpu, KVM_SET_CPUID2, cpuid), "CPUID");
    /* A 64-bit kernel, with paging. */
    struct kvm_sregs special;
    need(!ioctl(cpu, KVM_GET_SREGS, &special), "registers");
    struct kvm_segment code = {
        .limit = 0xffffffff, .selector = 8, .type = 11, .present = 1, .s = 1, .l = 1, .g = 1};
    struct kvm_segment data = code;
    data.selector = 16, data.type = 3, data.l = 0, data.db = 1;
    special.cs = code;
    special.ds = special.es = special.fs = special.gs = special.ss = data;
    special.cr3 = 0x1000, special.cr4 = 0x20, special.cr0 = 0x80000033, special.efer = 0x500;
    need(!ioctl(cpu, KVM_SET_SREGS, &special), "registers");
    struct kvm_regs plain = {.rip = UPPER + 0x10000, .rsp = UPPER + 0x20000, .rflags = 2};
    need(!ioctl(cpu, KVM_SET_REGS, &plain), "registers");
    /* mov edx, 0x608; out dx, al (three times); jmp f_mmio */
    memcpy(memory + 0x10000, "\xba\x08\x06\0\0\xee\xee\xee\xe9\xf3\0\0\0", 13);
    /* mov eax, [0x6000f0]; jmp f_hlt */
    memcpy(memory + 0x10100, "\xa1\xf0\0\x60\0\0\0\0\0\xe9\xf2\0\0\0", 14);
    /* hlt; jmp f_out */
    memcpy(memory + 0x10200, "\xf4\xe9\xfa\xfd\xff\xff", 6);
    for (;;)
        if (ioctl(cpu, KVM_RUN, 0))
            need(0, "to run");
}
