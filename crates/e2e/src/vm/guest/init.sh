#!/bin/sh
# First process of a guest. Loads the modules every test needs, sets up two networks, and serves
# commands until the host goes away; then the machine ends.
export PATH=/usr/bin:/bin HOME=/root TERM=dumb

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp

modprobe boot
mount -t configfs configfs /sys/kernel/config
mount -t debugfs debugfs /sys/kernel/debug

ip link set lo up
ip link set eth0 up
ip addr add 10.0.2.15/24 dev eth0
ip route add default via 10.0.2.2
ip link set eth1 up
ip addr add 10.0.3.15/24 dev eth1

# The kernel hands over HOST_UUID from its command line: two guests are two NVMe hosts.
mkdir -p /etc/nvme
echo "$HOST_UUID" > /etc/nvme/hostid
echo "nqn.2014-08.org.nvmexpress:uuid:$HOST_UUID" > /etc/nvme/hostnqn

# From here on the console shows everything the kernel says.
dmesg -n 8
guest-agent
echo "init: the agent ended, status $?"
poweroff -f
