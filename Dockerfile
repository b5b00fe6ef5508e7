# The binary is static: `make image` builds it first.
FROM scratch
COPY bin/culvert /culvert
USER 65532:65532
ENTRYPOINT ["/culvert"]
