/* Holds a Pod's namespaces: waits for a signal to end, and reaps all children of the Pod. */
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
