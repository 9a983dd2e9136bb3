# The services and the command in one small image:
#   docker build -t sickbay:0.1.0 .
#   docker run --rm -v sickbay:/var/lib/sickbay sickbay:0.1.0 serve          (with a NATS server of its own)

FROM python:3.13.9-slim-trixie AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY events events
COPY projections projections
COPY services services
RUN python -m venv /opt/sickbay \
    && /opt/sickbay/bin/pip install --no-cache-dir --constraint constraints.txt ".[server]"

FROM python:3.13.9-slim-trixie
RUN useradd --system --uid 10001 --home-dir /var/lib/sickbay --create-home sickbay
COPY --from=build /opt/sickbay /opt/sickbay
ENV PATH="/opt/sickbay/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    SICKBAY_DATA=/var/lib/sickbay
USER sickbay
VOLUME /var/lib/sickbay
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8480/healthz', timeout=2)"]
ENTRYPOINT ["sickbay"]
CMD ["serve"]
