// An OpenTelemetry Collector for the tests of traces: it receives OTLP and appends what it gets to a file, one document of
// OTLP's JSON a line. All but the exporter to a file is the Collector's own, and it is configured as usual:
// otel-collector --config FILE
package main

import (
	"context"
	"log"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

// fileConfig is the configuration of the exporter `file`.
type fileConfig struct {
	// Path is the file that is appended to.
	Path string `mapstructure:"path"`
}

// newFileFactory makes the exporter `file`. The one of the Collector's collection of contributions does the same, but
// depends on modules that not every module proxy has.
func newFileFactory() exporter.Factory {
	defaults := func() component.Config { return &fileConfig{} }
	create := func(ctx context.Context, set exporter.Settings, config component.Config) (exporter.Traces, error) {
		file, err := os.OpenFile(config.(*fileConfig).Path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, err
		}
		var lock sync.Mutex
		marshaler := ptrace.JSONMarshaler{}
		push := func(_ context.Context, traces ptrace.Traces) error {
			line, err := marshaler.MarshalTraces(traces)
			if err != nil {
				return err
			}
			lock.Lock()
			defer lock.Unlock()
			_, err = file.Write(append(line, '\n'))
			return err
		}
		return exporterhelper.NewTraces(ctx, set, config, push)
	}
	return exporter.NewFactory(component.MustNewType("file"), defaults,
		exporter.WithTraces(create, component.StabilityLevelDevelopment))
}

func factories() (otelcol.Factories, error) {
	receivers, err := otelcol.MakeFactoryMap[receiver.Factory](otlpreceiver.NewFactory())
	if err != nil {
		return otelcol.Factories{}, err
	}
	exporters, err := otelcol.MakeFactoryMap[exporter.Factory](newFileFactory())
	if err != nil {
		return otelcol.Factories{}, err
	}
	return otelcol.Factories{Receivers: receivers, Exporters: exporters, Telemetry: otelconftelemetry.NewFactory()}, nil
}

func main() {
	command := otelcol.NewCommand(otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otel-collector", Description: "OpenTelemetry Collector for tests"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{
			ResolverSettings: confmap.ResolverSettings{
				ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
				DefaultScheme:     "file",
			},
		},
	})
	if err := command.Execute(); err != nil {
		log.Fatal(err)
	}
}
