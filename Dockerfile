# syntax=docker/dockerfile:1
# docker build --tag linkerd-operator:dev .            (buildx with --platform linux/amd64,linux/arm64 for both)
#
# NOT TESTED here: no development host could run `docker build`, neither for amd64 nor for arm64. The release workflow
# builds it for amd64, and releases nothing if that fails. The tests use `make image`, which packs the same binary without
# docker.

ARG RUST=1.95

# Runs on the build platform and cross-compiles for the target platform, without emulation.
FROM --platform=$BUILDPLATFORM rust:${RUST}-bookworm AS build
ARG TARGETARCH
# The target triple with its compiler and linker: the native ones, or Debian's cross compiler for the other
# architecture.
RUN case "$TARGETARCH" in \
        amd64) triple=x86_64 packages="gcc-x86-64-linux-gnu libc6-dev-amd64-cross" ;; \
        arm64) triple=aarch64 packages="gcc-aarch64-linux-gnu libc6-dev-arm64-cross" ;; \
        *) echo "unsupported architecture: $TARGETARCH" >&2; exit 1 ;; \
    esac \
    && rustup target add "$triple-unknown-linux-gnu" \
    && echo "$triple" > /triple \
    && if [ "$TARGETARCH" != "$(dpkg --print-architecture)" ]; then \
        apt-get update && apt-get install --yes --no-install-recommends $packages && rm -rf /var/lib/apt/lists/*; \
    fi
WORKDIR /source
COPY . .
# The values for --version and the metric linkerd_operator_build_info.
ARG LINKERD_OPERATOR_COMMIT
ARG LINKERD_OPERATOR_BUILD_DATE
# The binary is static, because the image has no libc. With --target the flags do not apply to procedural macros, which
# cannot be static. On arm64, kernels have pages of up to 64 KiB (2^16), and jemalloc ends the process if its own pages
# are smaller. The cache mounts keep compiled dependencies, so that a change of our sources does not recompile them.
RUN --mount=type=cache,target=/usr/local/cargo/registry,sharing=locked \
    --mount=type=cache,target=/source/target,id=linkerd-operator-$TARGETARCH,sharing=locked \
    triple="$(cat /triple)" target="$(cat /triple)-unknown-linux-gnu" \
    && export "CC_${triple}_unknown_linux_gnu=$triple-linux-gnu-gcc" \
    && export "CARGO_TARGET_$(echo "$target" | tr a-z- A-Z_)_LINKER=$triple-linux-gnu-gcc" \
    && if [ "$TARGETARCH" = arm64 ]; then export JEMALLOC_SYS_WITH_LG_PAGE=16; fi \
    && export RUSTFLAGS="-C target-feature=+crt-static" CARGO_PROFILE_RELEASE_STRIP=symbols \
    && cargo build --locked --release --target "$target" --package linkerd-operator --bin linkerd-operator \
    && cp "target/$target/release/linkerd-operator" /linkerd-operator

FROM scratch
COPY --from=build /linkerd-operator /linkerd-operator
USER 65532:65532
EXPOSE 8086 9996
ENTRYPOINT ["/linkerd-operator"]
