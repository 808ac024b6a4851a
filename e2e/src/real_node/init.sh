# The first process of a node, in separate PID and mount namespaces. When it ends, the kernel destroys them with all processes,
# mounts, interfaces and rules, so nothing is left on the host, however the node ends.
#
# Arguments: a directory with containerd.toml, the host's end of the wire and its address, the node's address, the ranges of
# the Pods and of the Services.
# Writes its process id on the host into init.pid when the network is ready.
set -eu
directory=$1 wire=$2 host=$3 node=$4 pods=$5 services=$6

# At this point /proc is still the host's.
read -r id _ </proc/self/stat
mount -t proc proc /proc

# containerd, the kubelet and the CNI plugins keep state in fixed directories.
for state in /run /var/lib /var/log; do
    mount -t tmpfs -o mode=0755 tmpfs "$state"
done

# The kubelet would change these sysctls for the whole host, unless they already have the expected values.
mkdir -p "$directory/sysctl"
for sysctl in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    name=${sysctl%=*}
    file=$directory/sysctl/$(echo "$name" | tr / .)
    echo "${sysctl#*=}" >"$file"
    mount --bind "$file" "/proc/sys/$name"
done

# The kubelet's mounts must propagate to the containers.
mount --make-rshared /

# The network namespace is created by a process, and exists as long as that process.
unshare --net sleep infinity &
network=/proc/$!/ns/net
while [ "$(readlink "$network")" = "$(readlink /proc/self/ns/net)" ]; do
    sleep 0.01
done
ip link add name "$wire" type veth peer name eth0 netns "$!"
ip address add "$host/30" dev "$wire"
ip link set dev "$wire" up
ip route add "$pods" via "$node"
# The API server calls webhooks at the addresses of their Services.
ip route add "$services" via "$node"

in_network="nsenter --net=$network"
$in_network ip link set dev lo up
$in_network ip address add "$node/30" dev eth0
$in_network ip link set dev eth0 up
$in_network ip route add default via "$host"
$in_network sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'

echo "$id" >"$directory/init.pid"
# The shell keeps running to reap orphaned processes; it ends with containerd.
exec nsenter --net="$network" sh -c 'containerd --config "$1" & wait "$!"' sh "$directory/containerd.toml"
