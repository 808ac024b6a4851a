/*
 * Stands in for the programs of Linkerd's proxy image. Each does what requires a right, a mount or a variable that the
 * injected container must have, and exits with a message if it cannot.
 *
 *   linkerd2-proxy-init  creates the lock of iptables, a raw socket and an nftables table, without root
 *   linkerd2-proxy       reads its token and its trust anchors, writes its key, and answers probes on port 4191
 *   linkerd-await        waits until the proxy is ready
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define ADMIN_PORT 4191

_Noreturn static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

_Noreturn static void refuse(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* === linkerd2-proxy-init === */

struct message {
    struct nlmsghdr header;
    struct nfgenmsg body;
};

static struct message message(int type, int flags, int family, int resource, size_t length) {
    struct message made = {
        .header = {.nlmsg_len = length, .nlmsg_type = type, .nlmsg_flags = NLM_F_REQUEST | flags, .nlmsg_seq = 1},
        .body = {.nfgen_family = family, .version = NFNETLINK_V0, .res_id = htons(resource)},
    };
    return made;
}

/* What `nft add table ip linkerd` sends. */
static void add_table(void) {
    struct {
        struct message begin, table;
        struct nlattr name_header;
        char name[8];
        struct message end;
    } batch = {.name_header = {.nla_len = sizeof(struct nlattr) + 8, .nla_type = NFTA_TABLE_NAME}, .name = "linkerd"};
    size_t table = sizeof(struct message) + sizeof batch.name_header + sizeof batch.name;
    batch.begin = message(NFNL_MSG_BATCH_BEGIN, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES, sizeof(struct message));
    batch.table = message(NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_NEWTABLE, NLM_F_CREATE | NLM_F_ACK, AF_INET, 0, table);
    batch.end = message(NFNL_MSG_BATCH_END, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES, sizeof(struct message));

    int netfilter = socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER);
    struct timeval deadline = {.tv_sec = 5};
    struct sockaddr_nl kernel = {.nl_family = AF_NETLINK};
    if (netfilter < 0 || setsockopt(netfilter, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline))
        fail("opening a netfilter socket");
    if (sendto(netfilter, &batch, sizeof batch, 0, (struct sockaddr *)&kernel, sizeof kernel) != sizeof batch)
        fail("sending an nftables table");
    struct {
        struct nlmsghdr header;
        struct nlmsgerr error;
        char rest[512];
    } answer;
    if (recv(netfilter, &answer, sizeof answer, 0) < (ssize_t)(sizeof answer.header + sizeof answer.error.error))
        fail("reading the answer of netfilter");
    errno = -answer.error.error;
    if (answer.header.nlmsg_type != NLMSG_ERROR || errno)
        fail("creating an nftables table");
}

static int init(void) {
    if (getuid() == 0 || getgid() == 0)
        refuse("linkerd-init runs as root");
    if (open("/run/xtables.lock", O_CREAT | O_RDWR | O_CLOEXEC, 0600) < 0)
        fail("creating /run/xtables.lock");
    if (socket(AF_INET, SOCK_RAW, IPPROTO_RAW) < 0)
        fail("opening a raw socket");
    add_table();
    printf("the firewall can be set up\n");
    return 0;
}

/* === linkerd2-proxy === */

static const char *variable(const char *name) {
    const char *value = getenv(name);
    if (!value || !*value) {
        fprintf(stderr, "the variable %s is absent or empty\n", name);
        exit(1);
    }
    return value;
}

static void check_environment(void) {
    if (getuid() != 2102)
        refuse("the proxy does not run as user 2102");
    char token[3] = {0};
    int file = open("/var/run/secrets/tokens/linkerd-identity-token", O_RDONLY | O_CLOEXEC);
    if (file < 0 || read(file, token, 2) != 2)
        fail("reading the identity token");
    if (strcmp(token, "ey"))
        refuse("the identity token is not a JSON Web Token");
    if (!strstr(variable("LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS"), "BEGIN CERTIFICATE"))
        refuse("LINKERD2_PROXY_IDENTITY_TRUST_ANCHORS has no certificate");
    /* References to other variables and to fields of the Pod: the kubelet replaces them. */
    if (strchr(variable("LINKERD2_PROXY_IDENTITY_LOCAL_NAME"), '$'))
        refuse("LINKERD2_PROXY_IDENTITY_LOCAL_NAME has a reference that was not replaced");
    variable("LINKERD2_PROXY_DESTINATION_CONTEXT");
    printf("hash %s\n", variable("LINKERD_CONFIG_HASH"));
    fflush(stdout);
    char path[256];
    snprintf(path, sizeof path, "%s/key.p8", variable("LINKERD2_PROXY_IDENTITY_DIR"));
    if (open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600) < 0)
        fail(path);
}

static struct sockaddr_in admin(in_addr_t address) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(ADMIN_PORT), .sin_addr.s_addr = htonl(address)};
    return at;
}

static void end(int number) {
    (void)number;
    _exit(0);
}

_Noreturn static void proxy(void) {
    struct sigaction ending = {.sa_handler = end};
    sigaction(SIGTERM, &ending, 0);
    check_environment();
    struct sockaddr_in at = admin(INADDR_ANY);
    int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
    setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(server, (struct sockaddr *)&at, sizeof at) || listen(server, 16))
        fail("listening on the admin port");
    static const char ready[] = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nready\n";
    for (;;) {
        int client = accept(server, 0, 0);
        char request[1024];
        struct timeval deadline = {.tv_sec = 1};
        setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &deadline, sizeof deadline);
        if (read(client, request, sizeof request) > 0 && write(client, ready, sizeof ready - 1) < 0)
            perror("answering a probe");
        close(client);
    }
}

/* === linkerd-await === */

static int await_proxy(void) {
    struct sockaddr_in at = admin(INADDR_LOOPBACK);
    for (int left = 1200; left; left--) {
        int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (!connect(client, (struct sockaddr *)&at, sizeof at))
            return 0;
        close(client);
        usleep(100000);
    }
    refuse("the proxy is not ready");
}

int main(int count, char **arguments) {
    const char *name = count && strrchr(arguments[0], '/') ? strrchr(arguments[0], '/') + 1 : "";
    if (!strcmp(name, "linkerd2-proxy-init"))
        return init();
    if (!strcmp(name, "linkerd-await"))
        return await_proxy();
    proxy();
}
