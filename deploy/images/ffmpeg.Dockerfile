# The image with ffmpeg, which reads and writes videos: a second tag, because the program is larger than everything else together and is
# under another licence (GPL, version 3 or later). It is a static build, so it needs nothing of the base. The context is a folder that
# lay_out.sh made with the program.
ARG IMAGE=tidemill:latest
FROM ${IMAGE}
COPY addition/ /
ENV TIDEMILL_FFMPEG=/usr/lib/tidemill/ffmpeg
