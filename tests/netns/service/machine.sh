#!/bin/sh
# A machine of its own with systemd as its first process: all that it writes goes to memory, and of
# the host's /sys and /proc/sys it can change what belongs to its network namespace alone.
# usage: machine.sh FOLDER UNITS [PACKAGES]   (an empty folder; one of unit files; one of files of packages
# that this host need not have)
set -eu
folder=$1; units=$2; packages=${3:-}
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$folder"
mkdir "$folder/upper" "$folder/work" "$folder/root"
[ -z "$packages" ] || cp -a "$packages/." "$folder/upper"
mount -t overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" overlay "$folder/root"
cp -r "$units" "$folder/units"
cd "$folder/root"
mount -t proc proc proc
for each in kernel fs vm; do mount --bind -o ro proc/sys/$each proc/sys/$each; mount -o remount,bind,ro proc/sys/$each; done
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount --rbind /dev dev
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mkdir -p run/systemd/system run/lock run/seen
cp -r "$folder"/units/* run/systemd/system/
chmod o+x root  # where this test's Python may lie
# Of a daemon that this host may have, in this copy.
rm -rf var/lib/cedos var/lib/private/cedos
sed -i /^cedos:/d etc/passwd etc/group etc/shadow etc/gshadow
mkdir -p var/lib/private && chmod 700 var/lib/private
mkdir -p before
pivot_root . before
umount -l /before
exec env -i container=other PATH="$PATH" LANG=C.UTF-8 /lib/systemd/systemd --system \
    --unit=machine.target --log-target=console --show-status=false
