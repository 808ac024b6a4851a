# The network of the Pods: one network namespace per Pod, connected by a bridge in the namespace in which this script runs.
# When its processes end, the kernel destroys the namespaces with all interfaces and rules, so nothing is left on the host.
#
# Arguments: a directory, and for each Pod NAME=ADDRESS,ADDRESS…. Writes NAME.pid for each Pod, then `ready`.
set -eu
directory=$1
shift

ip link set dev lo up
ip link add name switch type bridge
ip link set dev switch up

for pod in "$@"; do
    name=${pod%%=*} addresses=${pod#*=}
    # The namespace exists as long as this process.
    unshare --net sleep infinity &
    network=/proc/$!/ns/net
    while [ "$(readlink "$network")" = "$(readlink /proc/self/ns/net)" ]; do
        sleep 0.01
    done
    ip link add name "$name" type veth peer name eth0 netns "$!"
    ip link set dev "$name" master switch up
    in_pod="nsenter --net=$network"
    $in_pod ip link set dev lo up
    $in_pod ip link set dev eth0 up
    for address in $(echo "$addresses" | tr , ' '); do
        $in_pod ip address add "$address/16" dev eth0
    done
    # A connection to a Service needs a route before it is redirected.
    $in_pod ip route add default dev eth0
    # The application's connections to Services are redirected to the outbound proxy. Connections from other Pods are
    # redirected to the inbound proxy, except those to the proxy's own ports.
    $in_pod nft -f - <<'RULES'
table ip traffic {
    chain outbound {
        type nat hook output priority -100
        ip daddr 10.96.0.0/16 meta l4proto tcp redirect to :4140
    }
    chain inbound {
        type nat hook prerouting priority -100
        iifname eth0 tcp dport != { 4143, 4190, 4191 } redirect to :4143
    }
}
RULES
    echo "$!" >"$directory/$name.pid"
done

touch "$directory/ready"
wait
