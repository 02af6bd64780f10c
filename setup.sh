# Sourced by ./run and ./test: installs what is missing and says so; a second time it does nothing.
# On Debian 12 as root. Anything already there (a newer Mahimahi, another uv) is used as it is.

say() { printf '\033[1m== %s\033[0m\n' "$*"; }

_missing() { # commands that are not there
  local name
  for name in "$@"; do command -v "$name" >/dev/null || echo "$name"; done
}

_need_root() {
  [ "$(id -u)" = 0 ] || { echo "please run as root: $1 (namespaces and packages need it)" >&2; exit 3; }
}

_install_packages() {
  # We want programs only: the services of Debian's packages are kept from starting, now and at the next boot.
  local service off=
  for service in nginx ssh; do
    [ -e "/etc/systemd/system/multi-user.target.wants/$service.service" ] || off="$off $service"
  done
  # In a shell of its own, whose end, also by Ctrl-C, takes our policy away; somebody else's stays.
  # (One of ours that was left, after kill -9, is known by its text.)
  (
    local policy=${POLICY:-/usr/sbin/policy-rc.d} ours='# of cedos: no service starts while packages are installed'
    if [ ! -e "$policy" ] || grep -qxF "$ours" "$policy"; then
      trap 'rm -f "$policy"' EXIT
      trap 'exit 130' INT TERM HUP
      printf '#!/bin/sh\n%s\nexit 101\n' "$ours" > "$policy"; chmod 755 "$policy"
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null
  ) || { echo "apt-get could not install: $*" >&2; exit 4; }
  # (Those that somebody had running here stay as they were.)
  for service in $off; do systemctl disable --quiet "$service.service" 2>/dev/null || true; done
}

_add_mahimahi_source() {
  # Debian 12 dropped Mahimahi, Debian 11 has it. Its suite of this machine's own mirror is added with
  # a pin, so that nothing but Mahimahi and the two old libraries it needs ever comes from there.
  . /etc/os-release
  [ "${VERSION_CODENAME:-}" = bookworm ] || return 0
  local mirror
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' 'Label: Debian' | head -n 1)
  [ -n "$mirror" ] || { echo "apt knows no Debian mirror of bookworm; Mahimahi comes from its bullseye suite" >&2; exit 4; }
  printf 'Types: deb\nURIs: %s\nSuites: bullseye\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' \
    "$mirror" > /etc/apt/sources.list.d/cedos-mahimahi.sources
  printf 'Package: *\nPin: release n=bullseye\nPin-Priority: 50\n\nPackage: mahimahi\nPin: release n=bullseye\nPin-Priority: 500\n' \
    > /etc/apt/preferences.d/cedos-mahimahi
}

_programs() {
  local missing
  missing=$(_missing mm-link mm-delay iptables ip ethtool conntrack nginx curl mptcpize dnsmasq ping openssl python3 jq \
    chromium ffmpeg dbus-daemon systemd-analyze git ssh sshd)
  [ -n "$missing" ] || { python3 -c 'import ensurepip' 2>/dev/null && return 0; }
  _need_root "installing $(echo $missing)"
  say "installing from Debian: $(echo $missing) (genuine Mahimahi from the pinned bullseye suite)"
  apt-get update -qq
  if [ -z "$(command -v mm-link)" ]; then _add_mahimahi_source; apt-get update -qq; fi
  _install_packages mahimahi iptables iproute2 ethtool conntrack nginx-light curl mptcpize \
    dnsmasq-base iputils-ping openssl python3 python3-venv jq chromium ffmpeg dbus-daemon systemd \
    git openssh-client openssh-server
}

unpack_desktop() {
  # NetworkManager and systemd-resolved for tests of a laptop as Debian has it: unpacked and not
  # installed, so that they never manage this machine's own networks.
  # (Made anew for another systemd, whose libraries they share.)
  local version; version=$(dpkg-query -W -f '${Version}' systemd 2>/dev/null || true)
  [ "$(cat .tools/desktop.for 2>/dev/null)" != "$version" ] || [ ! -d .tools/desktop ] || return 0
  say "unpacking Debian's NetworkManager and systemd-resolved into .tools"
  local work=$PWD/.tools/desktop.new archive folder
  rm -rf "$work"; mkdir -p "$work/archives/partial" "$work/root/usr"
  set -- apt-get install -qq -y --download-only --no-install-recommends \
    -o Dir::Cache::archives="$work/archives" network-manager systemd-resolved
  { "$@" >/dev/null 2>&1 || { apt-get update -qq && "$@" >/dev/null; }; } \
    || { echo "apt-get could not: tests that need them are left out" >&2; rm -rf "$work"; return 0; }
  for archive in "$work"/archives/*.deb; do [ ! -e "$archive" ] || dpkg -x "$archive" "$work/root"; done
  # (Where the system has links to /usr, no folder may hide them.)
  for folder in bin sbin lib lib64; do
    [ ! -d "$work/root/$folder" ] || { cp -a "$work/root/$folder" "$work/root/usr/"; rm -rf "${work:?}/root/$folder"; }
  done
  chmod 755 "$work/root" "$work/root/usr"
  rm -rf .tools/desktop; mv "$work/root" .tools/desktop; rm -rf "$work"
  echo "$version" > .tools/desktop.for
}

# The only program that is not in requirements.lock: it reads that. By the hashes of x86_64's and aarch64's wheels.
_uv="uv==0.13.9 \\
  --hash=sha256:d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19 \\
  --hash=sha256:ecb6028d79dc96fbeafffe5c8af62a7099487ebc05a701e76714eebcffd06375"

_environment() {
  # uv in a small environment of its own; requirements.lock decides all versions, by hash.
  if ! command -v uv >/dev/null; then
    if [ ! -x .tools/bin/uv ]; then
      say "installing uv into .tools"
      python3 -m venv .tools
      .tools/bin/pip install -q --disable-pip-version-check --require-hashes --only-binary :all: -r /dev/stdin <<END
$_uv
END
    fi
    PATH=$PWD/.tools/bin:$PATH
  fi
  # (The names of commands, and where they begin, are in pyproject.toml.)
  if ! cat requirements.lock pyproject.toml | cmp -s - .venv/installed; then
    say "making the Python environment .venv from requirements.lock"
    [ -x .venv/bin/python ] || uv venv -q --python "$(command -v python3)" .venv
    VIRTUAL_ENV=$PWD/.venv uv pip sync -q --compile-bytecode --require-hashes requirements.lock
    VIRTUAL_ENV=$PWD/.venv uv pip install -q --no-deps --no-build-isolation --editable .
    cat requirements.lock pyproject.toml > .venv/installed
  fi
  # Some environments forbid Python to keep what it compiled, and every start would compile all again.
  env -u PYTHONDONTWRITEBYTECODE .venv/bin/python -m compileall -q cedos predictors emu
  PATH=$PWD/.venv/bin:$PATH
  export PATH
}

_programs
_environment
