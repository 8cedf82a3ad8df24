package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// image writes an archive as `docker save` does, of an image whose only file is a program.
//
// It says nothing of when it was made: the same program gives the same image.
func image(archive, name, program string) error {
	binary, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	entry := filepath.Base(program)
	layer, err := tarOf(file{entry, 0o755, binary})
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		// Nobody, by number: what is asked to run as no root must be able to see that it does.
		"config": map[string]any{"Entrypoint": []string{"/" + entry}, "User": "65534:65534"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]map[string]any{{
		"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return err
	}
	whole, err := tarOf(
		file{"layer.tar", 0o644, layer}, file{"config.json", 0o644, config}, file{"manifest.json", 0o644, manifest},
	)
	if err != nil {
		return err
	}
	return os.WriteFile(archive, whole, 0o644)
}

type file struct {
	name    string
	mode    int64
	content []byte
}

func tarOf(files ...file) ([]byte, error) {
	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	for _, each := range files {
		header := &tar.Header{Name: each.name, Mode: each.mode, Size: int64(len(each.content)), Typeflag: tar.TypeReg}
		if err := writer.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := writer.Write(each.content); err != nil {
			return nil, err
		}
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	return buffer.Bytes(), nil
}
