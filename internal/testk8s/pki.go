// SPDX-License-Identifier: Apache-2.0

package testk8s

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority signs all certificates of a cluster, which are valid for a day.
type authority struct {
	dir    string // contains the certificates and keys
	server string // URL of the API server
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	serial int64
}

// newAuthority writes ca.crt, and the keys of service accounts.
func newAuthority(dir, server string) (*authority, error) {
	a := &authority{dir: dir, server: server}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a.key = key
	a.cert = &x509.Certificate{
		Subject: pkix.Name{CommonName: "test"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	if err := a.sign("ca", a.cert, key, key); err != nil {
		return nil, err
	}
	accounts, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	public, err := x509.MarshalPKIXPublicKey(&accounts.PublicKey)
	if err != nil {
		return nil, err
	}
	if err := a.write("sa.key", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(accounts)); err != nil {
		return nil, err
	}
	return a, a.write("sa.pub", "PUBLIC KEY", public)
}

// path returns the path of one of the authority's files.
func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// issue writes NAME.crt and NAME.key for a user in a group, valid for a server's addresses and
// names.
func (a *authority) issue(name, user, group string, hosts ...string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	c := &x509.Certificate{
		Subject:  pkix.Name{CommonName: user},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	if group != "" {
		c.Subject.Organization = []string{group}
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, h)
		}
	}
	return a.sign(name, c, key, a.key)
}

func (a *authority) sign(name string, c *x509.Certificate, key, by *ecdsa.PrivateKey) error {
	a.serial++
	c.SerialNumber = big.NewInt(a.serial)
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, by)
	if err != nil {
		return fmt.Errorf("certificate %s: %w", name, err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	if err := a.write(name+".key", "EC PRIVATE KEY", private); err != nil {
		return err
	}
	return a.write(name+".crt", "CERTIFICATE", der)
}

func (a *authority) write(file, kind string, der []byte) error {
	return os.WriteFile(a.path(file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}

// kubeconfig issues a certificate for a user, and writes NAME.kubeconfig with it.
func (a *authority) kubeconfig(name, user, group string, hosts ...string) error {
	if err := a.issue(name, user, group, hosts...); err != nil {
		return err
	}
	text := map[string]string{}
	for _, file := range []string{"ca.crt", name + ".crt", name + ".key"} {
		b, err := os.ReadFile(a.path(file))
		if err != nil {
			return err
		}
		text[file] = base64.StdEncoding.EncodeToString(b)
	}
	return os.WriteFile(a.path(name+".kubeconfig"), fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: me, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: test, context: {cluster: test, user: me}}]
current-context: test
`, a.server, text["ca.crt"], text[name+".crt"], text[name+".key"]), 0o600)
}
