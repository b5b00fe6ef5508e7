# The binaries are static: `make image` builds them first, and says by their stamp what they are.
FROM scratch
# One to a line: older builders take the first of several.
ARG TARGETARCH
ARG VERSION
ARG REVISION
ARG CREATED
LABEL org.opencontainers.image.title="culvert" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY dist/culvert-linux-$TARGETARCH /usr/bin/culvert
# For kubectl exec, which gets the name of the program alone.
ENV PATH=/usr/bin
USER 65532:65532
ENTRYPOINT ["/usr/bin/culvert"]
