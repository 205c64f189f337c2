# The image with the library of ONNX Runtime, which runs models faster than the built-in backend: a second tag, because the
# library is larger than everything else together. The context is a folder that lay_out.sh made with the library.
ARG IMAGE=tidemill:latest
FROM ${IMAGE}
COPY addition/ /
ENV TIDEMILL_ONNXRUNTIME=/usr/lib/tidemill/libonnxruntime.so
