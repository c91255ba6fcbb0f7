# An image that trains the demo and writes its record and curves to ./results of the host:
# docker build -t rmsexp . && docker run --rm -v "$PWD/results:/rmsexp/results" rmsexp
# This file was never built or run by its authors. It is a starting point.
FROM python:3.11-slim

# make runs the demo; g++ is needed to build the fused kernels
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /rmsexp
COPY . .
RUN make setup
CMD ["make", "demo"]
