#!/usr/bin/env bash
# Installs the C library: headers, libraries, pkg-config file, manual page. Builds them first, unless --built says where they are.
#
#   scripts/install-c.sh [--built DIR]     DIR holds libforebay_capi.so and libforebay_capi.a
#
# PREFIX (/usr/local), LIBDIR ($PREFIX/lib), and DESTDIR, below which everything is put for packagers.
set -euo pipefail
cd "$(dirname "$0")/.."

built=
case "${1:-} $#" in
'--built 2') built=$2 ;;
' 0') ;;
*) echo 'usage: scripts/install-c.sh [--built DIR]' >&2 && exit 2 ;;
esac
if [[ -z $built ]]; then
    cargo build --release --quiet -p forebay-capi
    built=${CARGO_TARGET_DIR:-target}/release
fi

prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
root=${DESTDIR:-}
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
source=crates/forebay-capi

install -d "$root$prefix/include" "$root$libdir/pkgconfig" "$root$prefix/share/man/man3"
install -m 644 "$source/forebay.h" "$root$prefix/include/"
install -m 644 "$source/forebay.3" "$root$prefix/share/man/man3/"
install -m 755 "$built/libforebay_capi.so" "$root$libdir/libforebay.so.$version"
install -m 644 "$built/libforebay_capi.a" "$root$libdir/libforebay.a"
ln -sf "libforebay.so.$version" "$root$libdir/libforebay.so.0"
ln -sf libforebay.so.0 "$root$libdir/libforebay.so"
sed -e "s|@prefix@|$prefix|" -e "s|@libdir@|$libdir|" -e "s|@version@|$version|" \
    "$source/forebay.pc.in" >"$root$libdir/pkgconfig/forebay.pc"
