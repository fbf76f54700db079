#!/bin/sh
# Loads a module and all it needs. The kernel calls this too, for example with "fs-xfs" when an XFS
# is mounted. `/modules/needs/NAME` lists modules with their options, in the order to load them.
export PATH=/usr/bin:/bin
for name; do :; done
name=$(echo "${name#fs-}" | tr - _)
[ -f "/modules/needs/$name" ] || exit 1
while read -r module options; do
    [ -d "/sys/module/$module/holders" ] && continue
    # shellcheck disable=SC2086
    insmod "/modules/$module.ko" $options || echo "modprobe: cannot load $module" > /dev/console
done < "/modules/needs/$name"
