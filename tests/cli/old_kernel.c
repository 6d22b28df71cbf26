/* Runs a program as on a kernel that lacks newer system calls: those numbered from FIRST on are refused as such a
 * kernel refuses them (ENOSYS), here and in all that the program starts.
 *
 *     old_kernel FIRST PROGRAM [ARGUMENT ...]
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "old_kernel FIRST PROGRAM [ARGUMENT ...]\n");
        return 2;
    }
    unsigned first = (unsigned)strtoul(argv[1], NULL, 10);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, first, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
        perror("old_kernel: the filter was refused");
        return 98;
    }
    /* So that a filter that lets everything through is no success. */
    if (syscall(first) != -1 || errno != ENOSYS) {
        fprintf(stderr, "old_kernel: call %u was not refused\n", first);
        return 97;
    }
    execv(argv[2], argv + 2);
    perror(argv[2]);
    return 96;
}
