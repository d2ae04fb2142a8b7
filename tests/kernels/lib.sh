# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Debian's kernels and an emulator that boots them, for scripts that source this.
# These scripts have set -euo pipefail, and a temporary directory in $work.
# shellcheck disable=SC2154 # the scripts set $work and $show

cache=${CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/loxilight} # downloads
accel=${ACCEL:-tcg,thread=multi} # kvm on hardware; Debian's kernels hang in nested kvm

# A private apt configuration: the suites with other kernels must not become this machine's sources.
apt_options=()
prepare_apt() {
	local apt=$cache/apt mirror security
	mkdir -p "$apt"/{lists/partial,cache/archives/partial,sources}
	mirror=$(apt_uris | grep -v security | head -n 1)
	security=$(apt_uris | grep security | head -n 1)
	local key=/usr/share/keyrings/debian-archive-keyring.gpg
	cat >"$apt/sources/debian.sources" <<-EOF
		Types: deb
		URIs: ${mirror:-http://deb.debian.org/debian}
		Suites: bullseye bookworm bookworm-backports trixie
		Components: main
		Signed-By: $key

		Types: deb
		URIs: ${security:-http://deb.debian.org/debian-security}
		Suites: bullseye-security bookworm-security trixie-security
		Components: main
		Signed-By: $key
	EOF
	apt_options=(-o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$apt/sources"
		-o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o Dir::State::status=/dev/null
		-o APT::Sandbox::User=root -o Acquire::Languages=none)
	if [ -z "$(find "$apt/lists" -maxdepth 1 -name '*Packages*' -mmin -600 -print -quit)" ]; then
		apt-get "${apt_options[@]}" -qq update
	fi
}

# The addresses of the Debian archives that this machine uses.
apt_uris() {
	# shellcheck disable=SC2016 # apt-get fills it in
	apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 2>/dev/null |
		grep -E 'debian(-security)?/?$' | sort -u || true
}

# newest 6.1 prints the release of the newest kernel 6.1, such as 6.1.0-56-amd64.
newest() {
	apt-cache "${apt_options[@]}" search --names-only "^linux-image-${1//./\\.}[.][0-9].*-amd64\$" |
		awk '{ print $1 }' | grep -vE -- '-(cloud|rt)-amd64$' | sed 's/^linux-image-//' | sort -V | tail -n 1
}

# fetch_kernel 6.1 puts the newest such kernel and its modules into the cache, once,
# and sets release to its name.
fetch_kernel() {
	mkdir -p "$cache"
	exec {lock}>"$cache/lock"
	flock "$lock" # another checkout may be downloading
	prepare_apt
	release=$(newest "$1")
	[ -n "$release" ] || { echo "Debian has no kernel $1" >&2; exit 2; }
	local to=$cache/$release deb
	if [ ! -e "$to/vmlinuz" ]; then
		rm -rf "$to" "$work/deb"
		mkdir -p "$work/deb" "$to/lib/modules"
		(cd "$work/deb" && apt-get "${apt_options[@]}" -qq download "linux-image-$release")
		deb=$(ls "$work"/deb/*.deb)
		dpkg-deb -x "$deb" "$work/deb/root"
		mv "$(find "$work/deb/root" -type d -path "*/lib/modules/$release" -print -quit)" "$to/lib/modules/"
		depmod -b "$to" "$release"
		mv "$work/deb/root/boot/vmlinuz-$release" "$to/vmlinuz"
	fi
	exec {lock}>&-
}

# begin_image makes $work/root with busybox, and with the given modules of the kernel $release and
# their dependencies.
begin_image() {
	local root=$work/root from=$cache/$release module path
	rm -rf "$root"
	mkdir -p "$root"/{bin,sbin,proc,sys,dev,run,tmp,etc,var,lib/modules/"$release"}
	ln -s ../run "$root/var/run"
	cp /bin/busybox "$root/bin/busybox"
	for module in "$@"; do
		modprobe -d "$from" -S "$release" --show-depends "$module" 2>/dev/null || true
	done | awk '$1 == "insmod" { print $2 }' | sort -u >"$work/modules"
	while read -r path; do
		module=$root/lib/modules/$release/$(basename "$path")
		case $path in
		*.xz) xz -dc "$path" >"${module%.xz}" ;;
		*.zst) zstd -dqc "$path" >"${module%.zst}" ;;
		*) cp "$path" "$module" ;;
		esac
	done <"$work/modules"
	cp "$from/lib/modules/$release"/modules.{builtin,builtin.modinfo,order} "$root/lib/modules/$release/"
	depmod -b "$root" "$release"
}

# add_tools puts programs of this machine into the image, with their libraries; missing programs
# are ignored: tests report which ones they need.
add_tools() {
	local tool path
	mkdir -p "$work/root/tools"
	for tool in "$@"; do
		path=$(command -v "$tool") || continue
		cp "$path" "$work/root/tools/"
		ldd "$path" | grep -o '/[^ ]*' | sort -u | while read -r path; do
			mkdir -p "$work/root$(dirname "$path")"
			cp -L -n "$path" "$work/root$path"
		done
	done
}

# end_image packs $work/root as the initial ramdisk.
end_image() {
	(cd "$work/root" && find . | cpio -o -H newc --quiet --owner=0:0 | gzip -1) >"$work/initrd"
}

# emulate SECONDS LOG COMMANDLINE [OPTION…] boots kernel $release and returns the exit code that
# the guest reports: the guest writes "kernels: begin" and "kernels: end N" on its console. 125: it
# never began, not even in a second attempt, since one boot in forty hangs under emulation. 124: it
# did not end. $show selects the lines of LOG to show.
emulate() {
	local seconds=$1 log=$2 line=$3 guest status
	shift 3
	for _ in first second; do
		: >"$log" # from the previous run
		# It is killed when this script ends, even on a signal.
		setpriv --pdeathsig KILL timeout --foreground -k 5 "$seconds" qemu-system-x86_64 -M q35 -accel "$accel" -cpu "${CPU:-Nehalem}" \
			-smp 2 -m "${MEMORY:-2048}" -nodefaults -no-user-config -display none -nic none -no-reboot \
			-kernel "$cache/$release/vmlinuz" -initrd "$work/initrd" -serial stdio "$@" </dev/null \
			-append "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check cryptomgr.notests random.trust_cpu=on $line" >"$log" 2>&1 &
		guest=$!
		begins "$guest" "$log" && break
		echo "kernels: $release did not begin: $(tail -n 1 "$log")"
		kill "$guest" 2>/dev/null || true
		wait "$guest" || true
	done
	grep -q '^kernels: begin' "$log" || return 125
	follow "$guest" "$log"
	status=$(sed -n 's/\r//; s/^kernels: end \([0-9]*\)$/\1/p' "$log")
	return "${status:-124}"
}

# follow GUEST LOG shows the log until the guest has ended. A signal interrupts it.
follow() {
	(tail -n +1 -f --pid="$1" "$2" | sed -u 's|\r||g' | grep --line-buffered -E "$show") &
	wait "$1" || true
	wait "$!" || true # for the last lines
}

# begins GUEST LOG waits until the guest has begun.
begins() {
	for ((i = 0; i < ${BOOT_S:-180}; i++)); do
		grep -q '^kernels: begin' "$2" && return
		kill -0 "$1" 2>/dev/null || return
		sleep 1
	done
	return 1
}
