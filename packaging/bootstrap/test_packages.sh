#!/bin/sh
# Programs that some tests need and pip cannot bring: a browser for the status page, nginx and openssl for TLS in front
# of the daemon, curl for the commands of the documents, and what sets, checks and packs the man pages. Never an error:
# what cannot be had is said in one line, and the tests that need it say so again.
#
# As root on Debian they are installed (Chromium is about 130 MB). nginx is only unpacked into the user's cache: an
# installed one would listen on port 80 from then on.
set -eu
cache="${XDG_CACHE_HOME:-$HOME/.cache}/stratad/nginx"

left_out() {
    echo "note: $1 is missing and $2; the tests that need it are left out" >&2
}

# A fresh container has no lists of packages yet.
update_lists() {
    if [ "$(id -u)" -eq 0 ] && [ -z "$(find /var/lib/apt/lists -name '*Packages*' 2>/dev/null | head -n 1)" ]; then
        apt-get update -qq >/dev/null 2>&1 || true
    fi
}

if ! command -v nginx >/dev/null 2>&1 && [ ! -x /usr/sbin/nginx ] && [ ! -x "$cache/nginx" ]; then
    update_lists
    draft="$cache.draft"
    rm -rf "$draft"
    mkdir -p "$draft" "$cache"
    if (cd "$draft" && apt-get download -qq nginx && dpkg-deb -x nginx_*.deb .) >/dev/null 2>&1 \
        && "$draft/usr/sbin/nginx" -v 2>/dev/null; then
        mv "$draft/usr/sbin/nginx" "$cache/nginx"
    else
        left_out nginx "cannot be fetched (apt-get download nginx)"
    fi
    rm -rf "$draft"
fi

# A program, and the package that has it.
wanted="openssl:openssl curl:curl groff:groff-base mandoc:mandoc dh_installman:debhelper"
command -v chromium-browser >/dev/null 2>&1 || wanted="chromium:chromium $wanted"
for pair in $wanted; do
    program=${pair%%:*} package=${pair##*:}
    if command -v "$program" >/dev/null 2>&1; then
        continue
    fi
    if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
        left_out "$package" "only root can install it: sudo apt-get install $package"
        continue
    fi
    echo "installing for the tests: $package"
    update_lists
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null 2>&1 \
        || left_out "$package" "cannot be installed (apt-get install $package)"
done
