# The binary is static: `make image` builds it first, and says by its stamp what it is.
FROM scratch
ARG VERSION REVISION CREATED
LABEL org.opencontainers.image.title="culvert" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY bin/culvert /culvert
USER 65532:65532
ENTRYPOINT ["/culvert"]
