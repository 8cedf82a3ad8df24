package main

import (
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

func writeKubeconfig(path, server string, authority, certificate, key []byte) error {
	config := api.NewConfig()
	config.Clusters["test"] = &api.Cluster{Server: server, CertificateAuthorityData: authority}
	config.AuthInfos["test"] = &api.AuthInfo{ClientCertificateData: certificate, ClientKeyData: key}
	config.Contexts["test"] = &api.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	return clientcmd.WriteToFile(*config, path)
}
