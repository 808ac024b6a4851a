/* What holds a pod's namespaces: it waits to be told to end, and leaves no child of the pod unreaped. */
#include <signal.h>
#include <unistd.h>

static void end(int number) {
    (void)number;
    _exit(0);
}

int main(void) {
    struct sigaction ending = {.sa_handler = end};
    struct sigaction reaping = {.sa_handler = SIG_IGN, .sa_flags = SA_NOCLDWAIT};
    sigaction(SIGTERM, &ending, 0);
    sigaction(SIGINT, &ending, 0);
    sigaction(SIGCHLD, &reaping, 0);
    for (;;)
        pause();
}
