#!/usr/bin/env bash
# Builds kube-apiserver and kube-controller-manager from Debian's source of Kubernetes 1.20.2, and takes etcd from Debian, for tests that
# find them by PERDURE_KUBERNETES. It needs Debian 12 on amd64, apt, curl, 6 GB of disk and about 20 minutes on two cores. Nothing is installed.
#
#   tests/executors/build_kubernetes.sh DIRECTORY
#   PERDURE_KUBERNETES=DIRECTORY/bin pytest tests/executors/test_kubernetes_conformance.py tests/executors/kubernetes
set -euo pipefail
work=$(mkdir -p "${1:?the directory to build in}" && cd "$1" && pwd)
source=http://deb.debian.org/debian/pool/main/k/kubernetes/kubernetes_1.20.5+really1.20.2.orig.tar.gz
tree=$work/gopath/src/k8s.io/kubernetes
cd "$work"
mkdir -p bin root "$(dirname "$tree")"

# Packages are unpacked here. This version of Kubernetes builds with Go 1.19.
if [ ! -x goroot/bin/go ]; then
  apt-get download golang-1.19-go golang-1.19-src etcd-server
  for package in *.deb; do dpkg -x "$package" root; done
  cp -aL root/usr/lib/go-1.19 goroot # the two packages link to each other
fi
cp root/usr/bin/etcd bin/
if [ ! -d "$tree" ]; then
  curl --fail --silent --show-error --max-time 600 --output kubernetes.tar.gz "$source"
  tar xzf kubernetes.tar.gz
  mv kubernetes-1.20.2 "$tree"
fi

export GOROOT=$work/goroot GOPATH=$work/gopath GOCACHE=$work/cache GO111MODULE=off CGO_ENABLED=0 GOFLAGS= PATH=$work/goroot/bin:$PATH
cd "$tree"
# Its definitions of OpenAPI are generated, and not part of the source.
if [ ! -s pkg/generated/openapi/zz_generated.openapi.go ]; then
  go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
  packages=$(grep -rlE --include='*.go' '^// *\+k8s:openapi-gen=true' pkg vendor/k8s.io staging/src/k8s.io | xargs -n1 dirname \
    | sed 's#^staging/src/#vendor/#' | sort -u | grep -vE 'sample-|/testdata|test/' | sed 's#^#k8s.io/kubernetes/#' | paste -sd,)
  "$work/openapi-gen" -O zz_generated.openapi --go-header-file hack/boilerplate/boilerplate.generatego.txt \
    --output-base "$GOPATH/src" -i "$packages" -p k8s.io/kubernetes/pkg/generated/openapi -r /dev/null
fi
go build -o "$work/bin/kube-apiserver" ./cmd/kube-apiserver
go build -o "$work/bin/kube-controller-manager" ./cmd/kube-controller-manager
ls -l "$work/bin"
