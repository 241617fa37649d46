#!/bin/bash
# Starts the control plane that build.sh has made: start.sh FOLDER [FIRST_PORT]. Five ports from the first on are used.
# FOLDER/kubeconfig is an administrator's; FOLDER/pids holds the processes to end, one per line. The API server listens
# at $ADDRESS (127.0.0.1). There is no kubelet.
set -euo pipefail
bin=${KUBE_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/mslaunch-kubernetes}/bin
folder=$(realpath -m "$1"); port=${2:-26440}; address=${ADDRESS:-127.0.0.1}
mkdir -p "$folder"; cd "$folder"; umask 077; : > pids
openssl genrsa -out accounts.key 2048 2>/dev/null
token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
echo "$token,admin,1,system:masters" > tokens.csv
start() { name=$1; shift; setsid "$bin/$name" "$@" > "$name.log" 2>&1 < /dev/null & echo $! >> pids; }
ready() { curl -ksf -H "Authorization: Bearer $token" "https://$address:$port/readyz" >/dev/null 2>&1; }
etcd=http://127.0.0.1:$((port + 1)); peer=http://127.0.0.1:$((port + 2))
# ttlSecondsAfterFinished is on by default from 1.21 on.
ttl=--feature-gates=TTLAfterFinished=true
start etcd --data-dir etcd --listen-client-urls "$etcd" --advertise-client-urls "$etcd" \
  --listen-peer-urls "$peer" --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer" --unsafe-no-fsync
start kube-apiserver --etcd-servers "$etcd" --secure-port "$port" --bind-address "$address" --insecure-port 0 \
  --cert-dir "$folder/certs" --token-auth-file tokens.csv --authorization-mode RBAC $ttl \
  --service-account-key-file accounts.key --service-account-signing-key-file accounts.key \
  --service-account-issuer https://kubernetes.default.svc --service-cluster-ip-range 10.96.0.0/16 \
  --disable-admission-plugins ServiceAccount --kubelet-preferred-address-types InternalIP
for _ in $(seq 240); do if ready; then break; fi; sleep 0.25; done
cat > kubeconfig <<END
apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "https://$address:$port", certificate-authority: "$folder/certs/apiserver.crt"}}]
users: [{name: admin, user: {token: "$token"}}]
contexts: [{name: test, context: {cluster: test, user: admin}}]
END
# A node that reports nothing is lost after 8 s instead of 40; claims are bound after 1 s instead of 15.
start kube-controller-manager --kubeconfig kubeconfig --service-account-private-key-file accounts.key $ttl \
  --node-monitor-period 2s --node-monitor-grace-period 8s --pvclaimbinder-sync-period 1s \
  --secure-port $((port + 3)) --port 0 --bind-address 127.0.0.1 --leader-elect=false
start kube-scheduler --kubeconfig kubeconfig --secure-port $((port + 4)) --port 0 --bind-address 127.0.0.1 --leader-elect=false
if ! ready; then echo "the API server did not start; see $folder/kube-apiserver.log" >&2; exit 1; fi
echo "$folder/kubeconfig"
