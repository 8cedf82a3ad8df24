package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A test cluster does not live longer, and one that does is to be made anew.
const validity = 365 * 24 * time.Hour

// An authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

// Who a certificate names, and what it is for.
type subject struct {
	name      string
	groups    []string
	addresses []net.IP
	hosts     []string
}

// credentials writes the certificates, keys and kubeconfigs of a cluster into a folder.
//
// They are made once: a cluster that is started again has those of its first start, since its nodes and the tests hold
// them.
func credentials(folder, server, serviceAddress, nodeNetwork string, nodes int) error {
	if _, err := os.Stat(filepath.Join(folder, "admin.kubeconfig")); err == nil {
		return nil
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	cluster, err := newAuthority(folder, "ca", "test-cluster")
	if err != nil {
		return err
	}
	// Requests that the API server passes on to servers of extensions are signed by an authority of their own:
	// with the cluster's, any user could claim to be another one there.
	proxies, err := newAuthority(folder, "front-proxy-ca", "test-cluster-front-proxy")
	if err != nil {
		return err
	}
	if err := proxies.sign(folder, "front-proxy-client", subject{name: "front-proxy-client"}); err != nil {
		return err
	}
	if err := cluster.sign(folder, "apiserver", subject{
		name: "kube-apiserver",
		hosts: []string{
			"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local",
		},
		addresses: []net.IP{
			net.IPv4(127, 0, 0, 1), net.ParseIP(serviceAddress), net.ParseIP(nodeNetwork + ".1"),
		},
	}); err != nil {
		return err
	}
	administrators := []string{"system:masters"}
	kubelets := subject{name: "kube-apiserver-kubelet-client", groups: administrators}
	if err := cluster.sign(folder, "apiserver-kubelet-client", kubelets); err != nil {
		return err
	}
	if err := serviceAccountKey(folder); err != nil {
		return err
	}
	for file, name := range map[string]string{
		"controller-manager": "system:kube-controller-manager",
		"scheduler":          "system:kube-scheduler",
		"dns":                "test-cluster:dns",
		"provisioner":        "test-cluster:provisioner",
	} {
		if err := cluster.user(folder, file, server, subject{name: name}); err != nil {
			return err
		}
	}
	// What runs on nodes reaches the machine at its address in their network.
	fromNodes := fmt.Sprintf("https://%s.1:%s", nodeNetwork, server[strings.LastIndex(server, ":")+1:])
	for file, name := range map[string]string{
		"proxy":    "system:kube-proxy",
		"policies": "test-cluster:policies",
	} {
		if err := cluster.user(folder, file, fromNodes, subject{name: name}); err != nil {
			return err
		}
	}
	for number := 1; number <= nodes; number++ {
		name := fmt.Sprintf("node-%d", number)
		// The same certificate is what the kubelet shows to the API server: it names the address.
		if err := cluster.user(folder, name, fromNodes, subject{
			name:      "system:node:" + name,
			groups:    []string{"system:nodes"},
			hosts:     []string{name},
			addresses: []net.IP{net.ParseIP(fmt.Sprintf("%s.%d", nodeNetwork, 10+number))},
		}); err != nil {
			return err
		}
	}
	// Last: its presence says that all others are there.
	return cluster.user(folder, "admin", server, subject{name: "administrator", groups: administrators})
}

func newAuthority(folder, file, name string) (*authority, error) {
	key, err := newKey(folder, file)
	if err != nil {
		return nil, err
	}
	template := newTemplate(name)
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{certificate, key}, writePEM(folder, file+".crt", "CERTIFICATE", der)
}

// sign makes a key and a certificate, for clients and for servers that have addresses.
func (a *authority) sign(folder, file string, who subject) error {
	key, err := newKey(folder, file)
	if err != nil {
		return err
	}
	template := newTemplate(who.name)
	template.Subject.Organization = who.groups
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(who.addresses) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	template.DNSNames = who.hosts
	template.IPAddresses = who.addresses
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return err
	}
	return writePEM(folder, file+".crt", "CERTIFICATE", der)
}

// user signs a certificate and writes the kubeconfig that uses it. All is within the file: whoever has it, wherever it
// is mounted, reaches the cluster.
func (a *authority) user(folder, file, server string, who subject) error {
	if err := a.sign(folder, file, who); err != nil {
		return err
	}
	certificate, err := os.ReadFile(filepath.Join(folder, file+".crt"))
	if err != nil {
		return err
	}
	key, err := os.ReadFile(filepath.Join(folder, file+".key"))
	if err != nil {
		return err
	}
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw})
	return writeKubeconfig(filepath.Join(folder, file+".kubeconfig"), server, authority, certificate, key)
}

func newTemplate(name string) *x509.Certificate {
	// Clocks of containers and of their host may differ a little.
	begin := time.Now().Add(-time.Minute)
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // The system has no randomness.
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    begin,
		NotAfter:     begin.Add(validity),
	}
}

func newKey(folder, file string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, writePEM(folder, file+".key", "EC PRIVATE KEY", der)
}

// serviceAccountKey makes the pair that tokens of service accounts are signed and verified with.
func serviceAccountKey(folder string) error {
	key, err := newKey(folder, "service-accounts")
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return err
	}
	return writePEM(folder, "service-accounts.pub", "PUBLIC KEY", der)
}

func writePEM(folder, file, kind string, der []byte) error {
	text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	return os.WriteFile(filepath.Join(folder, file), text, 0o600)
}
