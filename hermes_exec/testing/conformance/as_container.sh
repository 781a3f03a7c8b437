# What a slot with a root of its own has to answer just as a container of its image: each part is run in both, and exit
# code and output are compared. A part begins with "## name: meaning".

## user: Commands run as the image's user.
id -u
id -g
whoami
umask

## home: HOME is the image's, with what is in it.
cd
pwd
ls -lnA | sed 1d

## variables: The image's variables are there.
env | grep -Ev '^(_|PWD|OLDPWD|SHLVL|HOSTNAME|TMPDIR|USER|LOGNAME|LANG|HERMES_EXEC_.*)=' | sort

## root_directories: The directories of the root have their modes and owners.
for f in /*; do
  case $f in /workspace | /hermes-exec | /proc | /dev | /sys | /run | /tmp) continue ;; esac
  stat -c '%n %A %u:%g' "$f"
done

## writes: Files can be written wherever the image's user may.
for f in /* /usr/* /var/*; do
  case $f in /workspace | /hermes-exec | /proc | /dev | /sys) continue ;; esac
  [ -d "$f" ] || continue
  if (echo x >"$f/written") 2>/dev/null; then echo "$f: $(cat "$f/written")"; else echo "$f: no"; fi
done

## new_root_directory: A directory can be made in the root, renamed and removed.
mkdir -p /new/deep && echo x >/new/deep/file && mv /new /newer && cat /newer/deep/file
rm -rf /newer
ls -d /new* 2>&1 | sed 's/.*: //'

## capabilities: A command has the capabilities of a container, and may gain them by a setuid program.
grep -E '^(Cap|NoNewPrivs)' /proc/self/status

## ownership: Files can be given to any user.
cd /tmp && touch owned
chown 12345:54321 owned && stat -c '%u:%g' owned
chown 4000000000 owned && stat -c %u owned
chmod 4755 owned && stat -c %a owned

## other_users: Root can be another user, who may not read what is root's.
cd /tmp && echo x >mine && chmod 600 mine
su nobody -s /bin/sh -c 'id -u; cat mine; echo y >theirs; stat -c "%u %s" theirs' 2>&1 | sed 's/^.*mine/mine/'

## new_users: Users can be added and become the user of a command.
(useradd -m -u 7777 new || adduser -D -u 7777 new) >/dev/null 2>&1
id new
stat -c %A /home/new
su new -c 'cd; pwd; id -u'

## setuid: A setuid program has its owner's rights.
cd /tmp && cp "$(readlink -f "$(command -v cat)")" cat && chmod 4755 cat && echo secret >kept && chmod 600 kept
su nobody -s /bin/sh -c './cat kept' 2>&1 | tail -n 1

## mounts: Nothing can be mounted.
mkdir -p /tmp/m
mount -t tmpfs none /tmp/m 2>/dev/null && echo mounted
umount /proc 2>/dev/null && echo unmounted
echo done

## namespaces: No namespace can be made.
unshare -U true 2>/dev/null && echo users
unshare -m true 2>/dev/null && echo mounts
grep Seccomp: /proc/self/status

## hidden: What an engine hides of /proc and /sys is hidden.
for f in kcore keys timer_list sched_debug latency_stats; do
  if [ -e /proc/$f ]; then echo "$f: $(head -c 9 /proc/$f 2>/dev/null | wc -c)"; fi
done
for d in /proc/acpi /proc/scsi /sys/firmware; do
  if [ -d $d ]; then echo "$d: $(ls $d | wc -l)"; fi
done

## settings: The kernel's settings cannot be changed.
for f in /proc/sys/kernel/hostname /proc/sys/vm/drop_caches /proc/sysrq-trigger /proc/sys/kernel/core_pattern \
  /sys/kernel/profiling; do
  (echo 1 >$f) 2>/dev/null && echo "$f was written"
done
echo done

## devices: /dev has the nodes of a container, and they work.
for f in full null ptmx random tty urandom zero shm pts mqueue fd stdin stdout stderr sda kmsg mem fuse; do
  [ -e /dev/$f ] && echo $f
done
echo x >/dev/null && head -c 4 /dev/zero | od -An -tx1
head -c 8 /dev/urandom | wc -c
(echo x >/dev/full) 2>/dev/null || echo full

## disks: No disk can be read by a node of one's own.
cd /tmp
mknod d b 8 0 2>/dev/null
head -c 1 d 2>/dev/null | wc -c

## fifos: FIFOs can be made and used.
cd /tmp && mkfifo f
echo through >f &
cat f
stat -c %F f

## shared_memory: /dev/shm is as large as a container's.
df -k /dev/shm | tail -n 1 | tr -s ' ' | cut -d' ' -f2
echo x >/dev/shm/x && cat /dev/shm/x

## links: Hard links and symbolic links work, of the image's files too.
cd /tmp && echo x >a && ln a b && stat -c %h a
ln -s a c && cat c && rm a && cat b
ln /etc/passwd /etc/linked && cmp /etc/passwd /etc/linked && echo same

## removed_directory: A directory of the image can be removed and made anew.
mkdir -p /usr/share/doc
rm -rf /usr/share/doc
mkdir /usr/share/doc && ls -A /usr/share/doc
echo x >/usr/share/doc/x && ls /usr/share/doc

## renamed_directory: A directory of the image can be renamed with mv.
cp -a /etc /tmp/etc && mv /tmp/etc /tmp/moved && cmp /etc/passwd /tmp/moved/passwd && echo copied
cd /usr && for d in */; do
  [ -L "${d%/}" ] || [ "$d" = bin/ ] || [ "$d" = lib/ ] || { mv "$d" moved.d && ls -d moved.d && break; }
done

## replaced_program: A program of the image can be replaced.
p=$(command -v tail)
rm "$p" && printf '#!/bin/sh\necho replaced\n' >"$p" && chmod 755 "$p" && "$p"

## host_name: The host's name is that of /etc/hostname and in /etc/hosts.
[ "$(cat /etc/hostname)" = "$(hostname)" ] && echo same
grep -c "$(hostname)" /etc/hosts

## sparse: Sparse files and locks work.
cd /var/tmp || cd /tmp
dd if=/dev/zero of=sparse bs=1 count=1 seek=10000000 2>/dev/null
stat -c %s sparse
[ "$(du -k sparse | cut -f1)" -lt 100 ] && echo sparse
flock sparse echo locked

## change_root: Root may change its root.
chroot / /bin/sh -c 'echo changed'

## clock: Neither the clock nor the kernel's log are a tenant's.
date -s 2001-01-01 >/dev/null 2>&1 && echo set
dmesg >/dev/null 2>&1 && echo read
echo done

## priority: A command may lower its priority and not raise it.
nice -n 5 true && echo lowered
nice -n -5 true 2>/dev/null && nice -n -5 nice 2>/dev/null

## low_ports: A server may listen on a port below 1024.
cat /proc/sys/net/ipv4/ip_unprivileged_port_start

## package: A package can be installed and removed.
command -v dpkg-deb >/dev/null || { echo none; exit; }
cd /tmp && mkdir -p p/DEBIAN p/usr/local/bin
printf 'Package: p\nVersion: 1\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n' >p/DEBIAN/control
printf '#!/bin/sh\necho installed\n' >p/usr/local/bin/p && chmod 755 p/usr/local/bin/p
dpkg-deb -b p p.deb >/dev/null
dpkg -i p.deb >/dev/null 2>&1
p
dpkg -l p | tail -n 1 | cut -c1-2
dpkg -r p >/dev/null 2>&1
hash -r
command -v p || echo removed

## limits: Limits of a process are a container's.
ulimit -c
ulimit -s
ulimit -v

## process_table: No process of others is to be seen but the init.
ls /proc | grep -c '^[0-9]' | sed 's/^[2-9]$/few/'

## message_queues: Message queues and System V objects of others are not there.
ls /dev/mqueue
tail -n +2 /proc/sysvipc/shm | wc -l
