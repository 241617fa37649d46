#!/bin/bash
# Builds kube-apiserver, kube-controller-manager, kube-scheduler and kubelet 1.20 from Debian's sources, for the tests;
# etcd, kubectl, containerd, runc, busybox and the network plug-ins are Debian's own. Needs root and apt. Takes about ten minutes
# and 4 GB once; what is kept are the programs in $KUBE_HOME/bin (~/.cache/mslaunch-kubernetes/bin). Programs that are
# there already are not built again.
set -euo pipefail
home=${KUBE_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/mslaunch-kubernetes}
debian=(etcd kubectl containerd containerd-shim-runc-v2 ctr runc bridge host-local loopback busybox)
compiled=(kube-apiserver kube-controller-manager kube-scheduler kubelet)
missing() { for program in "$@"; do if [ ! -x "$home/bin/$program" ]; then echo "$program"; fi; done; }
is_built() { [ -z "$(missing "${debian[@]}" "${compiled[@]}")" ]; }
if is_built; then echo "$home/bin"; exit 0; fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "building Kubernetes needs root and apt" >&2; exit 1
fi
work=$home/work
mkdir -p "$home/bin"
exec 9> "$home/lock"
flock 9  # another build may be under way
if is_built; then echo "$home/bin"; exit 0; fi
rm -rf "$work"
trap 'cd /; rm -rf "$work"' EXIT
mkdir -p "$work/apt/parts" "$work/apt/lists/partial" "$work/go" "$work/gopath/src/k8s.io" "$work/bin"
cd "$work"
download() { apt-get -qq -o APT::Sandbox::User=root download "$@"; }
keep() { mv "$1" "$home/bin/.${1##*/}"; mv "$home/bin/.${1##*/}" "$home/bin/${1##*/}"; }  # whole or not at all

apt-get -qq update
if [ -n "$(missing "${debian[@]}")" ]; then
  download etcd-server kubernetes-client containerd runc containernetworking-plugins busybox-static
  for package in *.deb; do dpkg -x "$package" packages; done
  for program in $(missing "${debian[@]}"); do
    for folder in bin usr/bin usr/sbin usr/lib/cni; do
      if [ -e "packages/$folder/$program" ]; then keep "packages/$folder/$program"; fi
    done
  done
  rm -rf ./*.deb packages
fi
if is_built; then echo "$home/bin"; exit 0; fi

# The archive that this machine installs from, asked for sources; its own lists stay as they are.
for list in /etc/apt/sources.list.d/*.sources; do
  if [ -e "$list" ]; then sed 's/^Types:.*/Types: deb-src/' "$list" > "apt/parts/${list##*/}"; fi
done
: > apt/sources.list
if [ -s /etc/apt/sources.list ]; then sed -n 's/^deb /deb-src /p' /etc/apt/sources.list > apt/sources.list; fi
sources() {
  apt-get -qq -o APT::Sandbox::User=root -o Dir::Etc::sourcelist="$work/apt/sources.list" -o Dir::Etc::sourceparts="$work/apt/parts" \
    -o Dir::State::lists="$work/apt/lists" "$@"
}
sources update
sources source --download-only 'kubernetes=1.20*' 2>/dev/null || sources source --download-only kubernetes
download golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev
for package in *.deb; do dpkg -x "$package" packages; done

cp -r packages/usr/share/go-1.19/. go/
cp -r packages/usr/lib/go-1.19/. go/ 2>/dev/null || true
for part in bin pkg src; do
  if [ -L "go/$part" ]; then rm "go/$part"; cp -r "packages/usr/share/go-1.19/$part" go/ || true; fi
done
tar xf kubernetes_*.orig.tar.gz
tree=$work/gopath/src/k8s.io/kubernetes
mv kubernetes-1.20* "$tree"; cd "$tree"
export GOROOT=$work/go GOPATH=$work/gopath GOCACHE=$work/cache GO111MODULE=off CGO_ENABLED=0 GOFLAGS='' GOPROXY=off PATH=$work/go/bin:$PATH
# The copy of reflect2 in the sources crashes with Go 1.18 and later; Debian's does not.
rm -rf vendor/github.com/modern-go/reflect2
cp -r "$work/packages/usr/share/gocode/src/github.com/modern-go/reflect2" vendor/github.com/modern-go/

if [ ! -x "$home/bin/kube-apiserver" ]; then  # its OpenAPI definitions are generated, and are not in the sources
  go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
  staging='api|apimachinery|apiserver|kube-aggregator|apiextensions-apiserver|metrics|client-go|cloud-provider|kube-controller-manager|kube-scheduler|kubelet|kube-proxy|component-base|controller-manager'
  packages=$(grep -rl --include='*.go' '+k8s:openapi-gen=true' staging/src/k8s.io pkg | grep -v _test.go | xargs -n1 dirname | sort -u |
    grep -E "^(pkg/|staging/src/k8s.io/($staging)/)" |
    sed 's#^staging/src/#k8s.io/kubernetes/vendor/#; s#^pkg/#k8s.io/kubernetes/pkg/#' | paste -sd,)
  "$work/openapi-gen" --logtostderr -O zz_generated.openapi -p k8s.io/kubernetes/pkg/generated/openapi \
    -h hack/boilerplate/boilerplate.generatego.txt -r "$work/violations" -o "$GOPATH/src" -i "$packages" 2>/dev/null
fi
version=k8s.io/kubernetes/vendor/k8s.io/component-base/version
commands=$(for program in $(missing "${compiled[@]}"); do echo "./cmd/$program"; done)
# Without cloud providers and Docker: the clients of clouds are a large part of what would be compiled.
# shellcheck disable=SC2086
go build -tags 'providerless dockerless' -o "$work/bin/" \
  -ldflags "-s -w -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20" $commands
for program in $(missing "${compiled[@]}"); do keep "$work/bin/$program"; done
echo "$home/bin"
