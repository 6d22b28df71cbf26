# Builds and installs corelane as C programs know it: libraries, headers, files for pkg-config and
# CMake, and the command. Everything else is cargo's.
#
#   make lib                        the C library, in target/release
#   make install DESTDIR=... PREFIX=/usr
#   make deb                        a Debian package (cargo install cargo-deb --locked)
#
# TARGET=aarch64-unknown-linux-gnu builds for another machine; its linker is set as cargo wants it
# (CARGO_TARGET_..._LINKER) and STRIP to its strip.

PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
CARGO ?= cargo
STRIP ?= strip
INSTALL ?= install
TARGET ?=

version := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# The upper half of the C interface's version is the library's.
abi := $(shell printf '%d' $$(( $$(sed -n 's/^pub const CORELANE_ABI_VERSION: u32 = \(.*\);/\1/p' \
	src/capi/builder.rs | tr -d _) >> 16 )))
soname := libcorelane.so.$(abi)
file := $(soname).$(version)
target_dir := $(or $(CARGO_TARGET_DIR),target)
out := $(target_dir)/$(if $(TARGET),$(TARGET)/)release
cargo_flags := --release --locked $(if $(TARGET),--target $(TARGET))

.PHONY: all lib bin install install-lib install-bin uninstall deb

all: lib bin

# The allocator that counts is in the C library only; a Rust program that links the crate keeps its
# own (see src/capi/mod.rs).
lib:
	$(CARGO) rustc $(cargo_flags) --lib --features capi --crate-type staticlib,cdylib -- \
		--cfg corelane_c_library -C link-arg=-Wl,-soname,$(soname)

bin:
	$(CARGO) build $(cargo_flags) --bin corelane

install: install-lib install-bin

install-lib: lib
	$(INSTALL) -d '$(DESTDIR)$(INCLUDEDIR)' '$(DESTDIR)$(LIBDIR)/pkgconfig' \
		'$(DESTDIR)$(LIBDIR)/cmake/corelane'
	$(INSTALL) -m 644 include/corelane.h include/corelane.hpp '$(DESTDIR)$(INCLUDEDIR)'
	$(INSTALL) -m 644 '$(out)/libcorelane.a' '$(DESTDIR)$(LIBDIR)'
	$(STRIP) --strip-debug '$(DESTDIR)$(LIBDIR)/libcorelane.a'
	$(INSTALL) -m 755 '$(out)/libcorelane.so' '$(DESTDIR)$(LIBDIR)/$(file)'
	$(STRIP) --strip-unneeded '$(DESTDIR)$(LIBDIR)/$(file)'
	ln -sf '$(file)' '$(DESTDIR)$(LIBDIR)/$(soname)'
	ln -sf '$(soname)' '$(DESTDIR)$(LIBDIR)/libcorelane.so'
	sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(version)|' \
		-e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' packaging/corelane.pc.in \
		> '$(DESTDIR)$(LIBDIR)/pkgconfig/corelane.pc'
	sed -e 's|@FILE@|$(file)|' -e 's|@SONAME@|$(soname)|' packaging/corelane-config.cmake.in \
		> '$(DESTDIR)$(LIBDIR)/cmake/corelane/corelane-config.cmake'
	sed -e 's|@VERSION@|$(version)|' packaging/corelane-config-version.cmake.in \
		> '$(DESTDIR)$(LIBDIR)/cmake/corelane/corelane-config-version.cmake'

install-bin: bin
	$(INSTALL) -d '$(DESTDIR)$(BINDIR)'
	$(INSTALL) -m 755 '$(out)/corelane' '$(DESTDIR)$(BINDIR)'
	$(STRIP) '$(DESTDIR)$(BINDIR)/corelane'

uninstall:
	rm -f '$(DESTDIR)$(INCLUDEDIR)/corelane.h' '$(DESTDIR)$(INCLUDEDIR)/corelane.hpp' \
		'$(DESTDIR)$(LIBDIR)/libcorelane.a' '$(DESTDIR)$(LIBDIR)/libcorelane.so' \
		'$(DESTDIR)$(LIBDIR)/$(soname)' '$(DESTDIR)$(LIBDIR)/$(file)' \
		'$(DESTDIR)$(LIBDIR)/pkgconfig/corelane.pc' '$(DESTDIR)$(BINDIR)/corelane'
	rm -rf '$(DESTDIR)$(LIBDIR)/cmake/corelane'

# Two packages: the command with its service, and what C programs are built with.
deb:
	rm -rf target/deb
	$(MAKE) install DESTDIR='$(CURDIR)/target/deb' PREFIX=/usr
	$(CARGO) deb --locked --no-build --no-strip $(if $(TARGET),--target $(TARGET))
	$(CARGO) deb --locked --no-build --no-strip $(if $(TARGET),--target $(TARGET)) --variant dev
