package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

// brokers says where they are. With FRANZ_USER in the environment the client signs in there, with FRANZ_PASSWORD by
// SCRAM-SHA-512, over TLS; FRANZ_CA is the file of the CA.
func brokers(address string) ([]kgo.Opt, error) {
	options := []kgo.Opt{kgo.SeedBrokers(strings.Split(address, ",")...)}
	user := os.Getenv("FRANZ_USER")
	if user == "" {
		return options, nil
	}
	trusted, err := os.ReadFile(os.Getenv("FRANZ_CA"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(trusted) {
		return nil, fmt.Errorf("no certificate in FRANZ_CA")
	}
	shown := scram.Auth{User: user, Pass: os.Getenv("FRANZ_PASSWORD")}
	return append(options, kgo.DialTLSConfig(&tls.Config{RootCAs: pool}), kgo.SASL(shown.AsSha512Mechanism())), nil
}
