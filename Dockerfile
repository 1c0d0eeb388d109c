# halfstep on a CPU: docker build --tag halfstep . && docker run --rm --volume "$PWD:/work" halfstep judge train.py
FROM python:3.12-slim
RUN apt-get update && apt-get install --yes --no-install-recommends git && rm -rf /var/lib/apt/lists/*
COPY . /opt/halfstep
RUN pip install --no-cache-dir --constraint /opt/halfstep/requirements.txt "/opt/halfstep[tensorflow]"
WORKDIR /work
ENTRYPOINT ["halfstep"]
