# The image of all roles, for those who build images with Docker or Podman. `cargo xtask image`
# makes the same without either.
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked --package holdfast

FROM debian:bookworm-slim
RUN apt-get update \
 && apt-get install --yes --no-install-recommends btrfs-progs e2fsprogs xfsprogs \
 && rm -rf /var/lib/apt/lists/*
COPY --from=build /src/target/release/holdfast /usr/bin/holdfast
ENTRYPOINT ["/usr/bin/holdfast"]
