# Builds and installs corelane as C programs know it: libraries, headers, files for pkg-config and
# CMake, and the command. Everything else is cargo's.
#
#   make                            the C library and the command, in target/release
#   make install DESTDIR=... PREFIX=/usr
#                                   copies what was built, and builds nothing: so it needs no Rust, and
#                                   as root nothing is compiled as root (sudo make install, then
#                                   ldconfig where LIBDIR is one that the loader looks in)
#   make deb                        Debian packages (cargo install cargo-deb --locked), for Debian 11 and
#                                   later (boards/linker; GLIBC=host: for this machine's own glibc)
#
# TARGET=aarch64-unknown-linux-gnu builds for another machine; its linker is set as cargo wants it
# (CARGO_TARGET_..._LINKER) and STRIP to its strip. link_flags are the compiler's, for what is linked only
# (-C linker=... -C link-arg=...).

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
# What the static library takes from the system, besides the compiler's own libraries. Some of its objects
# don't say that they need no executable stack; they need none.
space := $() $()
static_libs := -lutil -lrt -lpthread -lm -ldl
static_options := -Wl,-z,noexecstack
# From CMake's file to the headers.
to_include = $(shell realpath -ms --relative-to='$(LIBDIR)/cmake/corelane' '$(INCLUDEDIR)')
pc = sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|' \
	-e 's|@VERSION@|$(version)|' -e 's|@STATIC@|$(static_options) $(static_libs)|'
file := $(soname).$(version)
target_dir := $(or $(CARGO_TARGET_DIR),target)
out := $(target_dir)/$(if $(TARGET),$(TARGET)/)release
cargo_flags := --release --locked $(if $(TARGET),--target $(TARGET))
link_flags :=
GLIBC ?= 2.31
host = $(shell rustc -vV | sed -n 's/^host: //p')

# Goals that are named together are made one after the other; cargo uses all cores by itself.
.NOTPARALLEL:

.PHONY: all lib bin built-lib built-bin install install-lib install-bin uninstall deb deb-packages

all: lib bin

# The allocator that counts is in the C library only; a Rust program that links the crate keeps its
# own (see src/capi/mod.rs).
lib:
	$(CARGO) rustc $(cargo_flags) --lib --features capi --crate-type staticlib,cdylib -- \
		--cfg corelane_c_library -C link-arg=-Wl,-soname,$(soname) $(link_flags)

bin:
	$(CARGO) rustc $(cargo_flags) --bin corelane -- $(link_flags)

# Says what is to be built first.
built = @test -e '$(1)' || { \
	echo "$(1) is not there: run \`make $(2)\` first, as the user who builds" >&2; exit 1; }

built-lib:
	$(call built,$(out)/libcorelane.a,lib)
	$(call built,$(out)/libcorelane.so,lib)

built-bin:
	$(call built,$(out)/corelane,bin)

install: built-lib built-bin install-lib install-bin
	@[ -n '$(DESTDIR)' ] || echo 'installed; run ldconfig if programs do not find the library'

install-lib: built-lib
	$(INSTALL) -d '$(DESTDIR)$(INCLUDEDIR)' '$(DESTDIR)$(LIBDIR)/pkgconfig' \
		'$(DESTDIR)$(LIBDIR)/cmake/corelane'
	$(INSTALL) -m 644 include/corelane.h include/corelane.hpp '$(DESTDIR)$(INCLUDEDIR)'
	$(INSTALL) -m 644 '$(out)/libcorelane.a' '$(DESTDIR)$(LIBDIR)'
	$(STRIP) --strip-debug '$(DESTDIR)$(LIBDIR)/libcorelane.a'
	$(INSTALL) -m 755 '$(out)/libcorelane.so' '$(DESTDIR)$(LIBDIR)/$(file)'
	$(STRIP) --strip-unneeded '$(DESTDIR)$(LIBDIR)/$(file)'
	ln -sf '$(file)' '$(DESTDIR)$(LIBDIR)/$(soname)'
	ln -sf '$(soname)' '$(DESTDIR)$(LIBDIR)/libcorelane.so'
	$(pc) packaging/corelane.pc.in > '$(DESTDIR)$(LIBDIR)/pkgconfig/corelane.pc'
	$(pc) packaging/corelane-static.pc.in > '$(DESTDIR)$(LIBDIR)/pkgconfig/corelane-static.pc'
	sed -e 's|@FILE@|$(file)|' -e 's|@SONAME@|$(soname)|' -e 's|@TO_INCLUDE@|$(to_include)|' \
		-e 's|@STATIC_LIBS@|$(subst $(space),;,$(static_libs:-l%=%))|' -e 's|@STATIC_OPTIONS@|$(static_options)|' \
		packaging/corelane-config.cmake.in \
		> '$(DESTDIR)$(LIBDIR)/cmake/corelane/corelane-config.cmake'
	sed -e 's|@VERSION@|$(version)|' packaging/corelane-config-version.cmake.in \
		> '$(DESTDIR)$(LIBDIR)/cmake/corelane/corelane-config-version.cmake'

install-bin: built-bin
	$(INSTALL) -d '$(DESTDIR)$(BINDIR)'
	$(INSTALL) -m 755 '$(out)/corelane' '$(DESTDIR)$(BINDIR)'
	$(STRIP) '$(DESTDIR)$(BINDIR)/corelane'

uninstall:
	rm -f '$(DESTDIR)$(INCLUDEDIR)/corelane.h' '$(DESTDIR)$(INCLUDEDIR)/corelane.hpp' \
		'$(DESTDIR)$(LIBDIR)/libcorelane.a' '$(DESTDIR)$(LIBDIR)/libcorelane.so' \
		'$(DESTDIR)$(LIBDIR)/$(soname)' '$(DESTDIR)$(LIBDIR)/$(file)' \
		'$(DESTDIR)$(LIBDIR)/pkgconfig/corelane.pc' \
		'$(DESTDIR)$(LIBDIR)/pkgconfig/corelane-static.pc' '$(DESTDIR)$(BINDIR)/corelane'
	rm -rf '$(DESTDIR)$(LIBDIR)/cmake/corelane'

# Three packages: the command with its service, the shared library that C programs run with, and what they
# are built with.
deb:
	rm -rf target/deb
	linker=$$(boards/linker '$(or $(TARGET),$(host))' '$(GLIBC)') && \
		$(MAKE) all install DESTDIR='$(CURDIR)/target/deb' PREFIX=/usr link_flags="-C linker=$$linker"
	$(MAKE) deb-packages

# Of what lies in target/deb.
deb-packages:
	$(CARGO) deb --locked --no-build --no-strip $(if $(TARGET),--target $(TARGET))
	$(CARGO) deb --locked --no-build --no-strip $(if $(TARGET),--target $(TARGET)) --variant lib
	$(CARGO) deb --locked --no-build --no-strip $(if $(TARGET),--target $(TARGET)) --variant dev
