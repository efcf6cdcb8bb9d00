# A boot sector that proves a disk through the firmware's own driver (SeaBIOS, INT 13h): it reads
# 64 sectors by number and 8 by cylinder, adds them up, writes a sector, reads it back, and says
# DISKOK on the first serial port, or DISKBAD and the letter of the step that failed.
#
# tests/src/suite/cases/foreign/seabios.rs assembles it and fills in the two sums and the sectors. Layout of the disk:
# sector 0 this; 1-8 read by cylinder; 2048-2111 read by number; 4096 written.

        .code16
        .globl _start
_start:
        cli
        xorw %ax, %ax
        movw %ax, %ds
        movw %ax, %ss
        movw $0x7c00, %sp
        sti
        movb %dl, drive

        movb $'a', step                 # the extensions that read and write by number are there
        movb $0x41, %ah
        movw $0x55aa, %bx
        int $0x13
        jc bad

        movb $'b', step                 # 64 sectors by number, to 0x1000:0
        movw $packet_read, %si
        movb $0x42, %ah
        call disk
        movw $(64 * 256), %cx
        call sum
        cmpw sum_by_number, %ax
        jne bad

        movb $'c', step                 # 8 sectors by cylinder 0, head 0, sector 2
        movw $0x1000, %ax
        movw %ax, %es
        xorw %bx, %bx
        movw $0x0208, %ax
        movw $0x0002, %cx
        xorb %dh, %dh
        movb drive, %dl
        int $0x13
        jc bad
        movw $(8 * 256), %cx
        call sum
        cmpw sum_by_cylinder, %ax
        jne bad

        movb $'d', step                 # what lies at 0x1000:0 is written to sector 4096
        movw $packet_write, %si
        movw $0x4300, %ax
        call disk

        movb $'e', step                 # and read back to 0x2000:0
        movw $packet_back, %si
        movb $0x42, %ah
        call disk
        movw $0x1000, %ax
        movw %ax, %ds
        movw $0x2000, %ax
        movw %ax, %es
        xorw %si, %si
        xorw %di, %di
        movw $256, %cx
        cld
        repe cmpsw
        movw $0, %ax
        movw %ax, %ds
        jne bad

        movw $good_text, %si
        call print
        jmp stop
bad:
        xorw %ax, %ax
        movw %ax, %ds
        movw $bad_text, %si
        call print
        movb step, %al
        call put
        movb $'\n', %al
        call put
stop:
        cli
        hlt
        jmp stop

# INT 13h with the packet at SI; does not come back on an error.
disk:
        movb drive, %dl
        int $0x13
        jc 1f
        ret
1:      addw $2, %sp
        jmp bad

# AX: the sum of CX words from 0x1000:0.
sum:
        movw $0x1000, %ax
        movw %ax, %es
        xorw %ax, %ax
        xorw %di, %di
1:      addw %es:(%di), %ax
        addw $2, %di
        loop 1b
        ret

print:
        lodsb
        testb %al, %al
        jz 1f
        call put
        jmp print
1:      ret

# AL to COM1, once it takes a byte.
put:
        movb %al, %bl
        movw $0x3fd, %dx
1:      inb %dx, %al
        testb $0x20, %al
        jz 1b
        movb %bl, %al
        movw $0x3f8, %dx
        outb %al, %dx
        ret

good_text:      .asciz "DISKOK\n"
bad_text:       .asciz "DISKBAD "
drive:          .byte 0
step:           .byte '0'
        .balign 4
packet_read:    .byte 16, 0, 64, 0
                .word 0, 0x1000
                .quad 2048
packet_write:   .byte 16, 0, 1, 0
                .word 0, 0x1000
                .quad 4096
packet_back:    .byte 16, 0, 1, 0
                .word 0, 0x2000
                .quad 4096

        .org 506
sum_by_number:  .word 0
sum_by_cylinder: .word 0
        .word 0xaa55
