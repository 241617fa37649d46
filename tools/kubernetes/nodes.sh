#!/bin/bash
# A Kubernetes cluster with real nodes on this machine: the programs that build.sh has made, in namespaces of their own.
#   nodes.sh up FOLDER NODE...      start the control plane and the nodes; wait until all are ready
#   nodes.sh run FOLDER COMMAND...  run a command where the API server can be reached
#   nodes.sh lose FOLDER NODE       a node that is switched off; nodes.sh back FOLDER NODE: it is started again
#   nodes.sh down FOLDER            end everything, and leave nothing
# FOLDER/plane/kubeconfig is an administrator's. A node has its own mounts, processes, network, host name, /var and /run,
# a kubelet and a containerd; killing one process ends it with all its containers. Pods of different nodes reach each
# other by routing. All pods use the image docker.io/local/job:1, which is nearly empty: every container sees /usr and the
# folders in $PYTHONS of this machine, read-only. FOLDER lies neither below /var nor below /run. Needs root and control
# groups of version 1.
set -euo pipefail
self=$(realpath "$0"); tools=$(dirname "$self"); command=${1:-}; folder=$(realpath -m "${2:-}")
bin=${KUBE_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/mslaunch-kubernetes}/bin; export PATH=$bin:$PATH
gate=10.214.0.254; port=6443
if [ $# -lt 2 ]; then sed -n '2,12p' "$self"; exit 2; fi
shift 2
if [ "$command" = run ]; then exec nsenter --net="/run/netns/$(cat "$folder/id")" "$@"; fi
mkdir -p "$folder"; cd "$folder"
export MSLAUNCH_NODES=$folder  # marks every process of this cluster; those in containers are in its control groups
if [ ! -e id ]; then echo "msk$$" > id; fi
id=$(cat id)

hierarchies() { find /sys/fs/cgroup -mindepth 1 -maxdepth 1 -type d; }
within() { nsenter --net="/run/netns/$id" "$@"; }

prepare() {  # NODE NUMBER: network, control groups and configuration of a node
  local node=$1 number=$2 own=$folder/nodes/$1 net=$id-$1 hierarchy other
  mkdir -p "$own"/{var/lib/kubelet,var/lib/containerd,var/log,var/tmp,net.d}
  chmod 1777 "$own/var/tmp"; ln -sfn /run "$own/var/run"; echo "$number" > "$own/number"
  ip netns add "$net"
  ip link add "$node" netns "$id" type veth peer name eth0 netns "$net"
  ip -n "$id" link set "$node" master nodes up
  ip -n "$id" route add "10.215.$number.0/24" via "10.214.0.$number"
  ip -n "$net" addr add "10.214.0.$number/24" dev eth0
  ip -n "$net" link set lo up; ip -n "$net" link set eth0 up
  ip -n "$net" route add default via $gate
  for other in $(seq 8); do
    if [ "$other" != "$number" ]; then ip -n "$net" route add "10.215.$other.0/24" via "10.214.0.$other"; fi
  done
  for hierarchy in $(hierarchies); do
    mkdir -p "$hierarchy/$net"
    if [ -e "$hierarchy/cpuset.cpus" ]; then
      cat "$hierarchy/cpuset.cpus" > "$hierarchy/$net/cpuset.cpus"; cat "$hierarchy/cpuset.mems" > "$hierarchy/$net/cpuset.mems"
    fi
  done
  # shellcheck disable=SC2086
  ctr oci spec | python3 -c 'import json, sys
spec = json.load(sys.stdin)
spec["process"].pop("rlimits", None)
options = ["rbind", "ro"]
spec["mounts"] += [{"destination": path, "source": path, "type": "bind", "options": options} for path in sys.argv[1:]]
json.dump(spec, sys.stdout)' /usr ${PYTHONS:-} > "$own/spec.json"
  # Root may lack CAP_SYS_RESOURCE here. The native snapshotter works on every file system, and the image is small.
  cat > "$own/containerd.toml" <<T
version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/local/job:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      base_runtime_spec = "$own/spec.json"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "$bin/runc"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$bin"
    conf_dir = "$own/net.d"
T
  cat > "$own/net.d/10-pods.conflist" <<T
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.215.$number.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
T
  # Logs are rotated at 1 MB instead of 10, and a node that is lost is missed after 8 s instead of 40.
  cat > "$own/kubelet.yaml" <<T
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: 10.214.0.$number
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
readOnlyPort: 0
cgroupDriver: cgroupfs
cgroupRoot: /$net
failSwapOn: false
makeIPTablesUtilChains: false
clusterDNS: [$gate]
clusterDomain: cluster.local
resolvConf: ""
containerLogMaxSize: ${LOG_SIZE:-1Mi}
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 8
maxPods: 20
T
}

switch_on() {  # NODE
  ip -n "$id" link set "$1" up
  nsenter --net="/run/netns/$id-$1" setsid unshare --mount --propagation private --pid --uts --ipc --fork --kill-child \
    "$self" inside "$folder" "$1" > "nodes/$1/node.log" 2>&1 < /dev/null & echo $! > "nodes/$1/pid"
}

inside() {  # NODE: the first process of a node
  local node=$1 own=$folder/nodes/$1 pair file
  hostname "$node"
  mount --make-rshared /  # in this namespace: containers see what the kubelet mounts
  mount --bind "$own/var" /var; mount -t tmpfs -o mode=755 none /run; mount -t proc proc /proc
  for pair in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1; do
    file=$own/sysctl-${pair//[\/=]/-}  # the kubelet would set it for the whole machine
    echo "${pair#*=}" > "$file"; mount --bind "$file" "/proc/sys/${pair%=*}"
  done
  containerd -c "$own/containerd.toml" > "$own/containerd.log" 2>&1 &
  for _ in $(seq 200); do if ctr version > /dev/null 2>&1; then break; fi; sleep 0.1; done
  ctr -n k8s.io images import --snapshotter native "$folder/job.tar" > /dev/null
  while [ ! -s "$folder/plane/kubeconfig" ]; do sleep 0.1; done  # the control plane starts meanwhile
  kubelet --config "$own/kubelet.yaml" --kubeconfig "$folder/plane/kubeconfig" --hostname-override "$node" \
    --node-ip "10.214.0.$(cat "$own/number")" --container-runtime remote \
    --container-runtime-endpoint unix:///run/containerd/containerd.sock > "$own/kubelet.log" 2>&1 &
  while :; do wait -n || true; sleep 0.2; done
}

up() {  # NODE...
  local number=0 node plane
  ip netns add "$id"; ip -n "$id" link set lo up
  ip -n "$id" link add nodes type bridge; ip -n "$id" addr add $gate/24 dev nodes; ip -n "$id" link set nodes up
  ADDRESS=$gate within "$tools/start.sh" "$folder/plane" $port > /dev/null & plane=$!
  python3 "$tools/image.py" job.tar "$bin/busybox"
  for node in "$@"; do number=$((number + 1)); prepare "$node" $number; switch_on "$node"; done
  wait $plane
  nsenter --net="/run/netns/$id" setsid python3 "$tools/names.py" $gate plane/kubeconfig > names.log 2>&1 < /dev/null & echo $! >> plane/pids
  for _ in $(seq 240); do
    if [ "$(within kubectl --kubeconfig plane/kubeconfig get nodes 2> /dev/null | grep -c ' Ready')" = $number ]; then
      echo "$folder/plane/kubeconfig"; return
    fi
    sleep 0.5
  done
  echo "the nodes are not ready; see $folder/nodes/*/kubelet.log" >&2; exit 1
}

lose() {  # NODE: without a farewell
  ip -n "$id" link set "$1" down
  kill -KILL "$(cat "nodes/$1/pid")"; rm "nodes/$1/pid"
}

back() { switch_on "$1"; }

down() {
  local file node hierarchy
  for file in nodes/*/pid plane/pids; do
    if [ -e "$file" ]; then for pid in $(cat "$file"); do kill -KILL "$pid" 2> /dev/null || true; done; fi
  done
  for node in nodes/*/; do
    node=$id-$(basename "$node")
    for hierarchy in $(hierarchies); do
      for _ in $(seq 100); do  # processes of a killed namespace are gone soon
        if [ ! -d "$hierarchy/$node" ]; then break; fi
        find "$hierarchy/$node" -depth -type d -exec rmdir {} + 2> /dev/null && break
        sleep 0.1
      done
    done
    ip netns del "$node" 2> /dev/null || true
  done
  ip netns del "$id" 2> /dev/null || true
  rm -rf nodes plane
}

case $command in
up | lose | back | down | inside) "$command" "$@" ;;
*) sed -n '2,12p' "$self"; exit 2 ;;
esac
