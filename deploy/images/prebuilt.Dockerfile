# The image of Tidemill with a program that was built outside: `make image`. The context is a folder that lay_out.sh made. The
# program must have been linked with a libc that is no newer than the base's (2.36 for Debian 12).
ARG RUNTIME_BASE=gcr.io/distroless/cc-debian12:nonroot

FROM scratch AS layout
LABEL org.tidemill.stage=layout
COPY . /layout

FROM ${RUNTIME_BASE}
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="tidemill" \
      org.opencontainers.image.description="Runs machine-learning workflows as continuous dataflows" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
# A new volume takes over who owns the folder that it is mounted on. What is copied to / keeps its times, also of folders that are there
# already; what is copied deeper would give those the time of now.
COPY --from=layout --chown=65532:65532 /layout/state/ /
COPY --from=layout /layout/program/ /
USER 65532:65532
WORKDIR /var/lib/tidemill
STOPSIGNAL SIGTERM
# Of a controller or a worker that serves metrics at its usual port; `tidemill deploy` names the one that each has. What serves none, a
# `run` for instance, is started with `--no-healthcheck`.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["tidemill", "health", "127.0.0.1:9464", "127.0.0.1:9465"]
ENTRYPOINT ["/usr/bin/tidemill"]
CMD ["--help"]
